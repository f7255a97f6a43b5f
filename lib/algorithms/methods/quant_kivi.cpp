// quant-kivi: every token stays, keys quantized per channel and values per token; the last
// `residual` tokens exact.
// [1] Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024,
//     arXiv:2402.02750.
// [2] Hooper et al., "KVQuant: Towards 10 Million Context Length LLM Inference with KV Cache
//     Quantization", NeurIPS 2024, arXiv:2401.18079: keys before their rotation (section 3.2),
//     separate outliers (section 3.4).
// Keys: one scale and zero per channel and group of group_size tokens. Values: one per token and
// group of group_size channels. A budget takes the first that fits of 8, 4, 3, 2 bits (keys and
// values alike), for each group_size, 2 group_size, ... up to one group. A stream fits the largest
// size up to its length. Scales, zeros and outliers are aux. Attending reads codes back on the fly
// (fused in [1]), so nothing is transient.
// In: K [m, d], V [m, dv]. Out: m - residual read-back pairs of weight 1 and the exact residual.
// Time O(m (d + dv)).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"
#include "attention/quantize.hpp"
#include "core/error.hpp"

namespace kvbench::method_quant_kivi {
namespace {

struct Format {
  int k_bits = 8;
  int v_bits = 8;
  Index group = 32;
  double outliers = 0.0;
};

// One coded group of a stream's tokens.
struct Block {
  Index tokens;
  QuantizedRows keys;    // [d] rows of `tokens`
  QuantizedRows values;  // [tokens] rows of dv

  Block(const KvHead& head, std::span<const Index> positions, const Format& f)
      : tokens(static_cast<Index>(positions.size())),
        keys(f.k_bits, tokens, f.group),
        values(f.v_bits, head.dv(), f.group) {
    std::vector<float> channel(positions.size());
    for (Index c = 0; c < head.d(); ++c) {
      for (std::size_t i = 0; i < positions.size(); ++i) {
        channel[i] = head.k.row(positions[i])[c];
      }
      keys.append(channel);
    }
    for (const Index i : positions) {
      values.append(head.v.view().row_span(i));
    }
  }

  // Writes rows from `first` on.
  void read(MadeTokens& out, Index first) const {
    std::vector<float> channel(tokens);
    for (Index c = 0; c < out.k.cols(); ++c) {
      keys.read(c, channel);
      for (Index i = 0; i < tokens; ++i) {
        out.k.row(first + i)[c] = channel[i];
      }
    }
    for (Index i = 0; i < tokens; ++i) {
      values.read(i, {out.v.row(first + i), static_cast<std::size_t>(out.v.cols())});
    }
  }
};

// Of a block of a stream, of so many tokens.
CodeBytes block_bytes(const EntryShape& h, Index tokens, const Format& f) {
  return {QuantizedRows::code_bytes(f.k_bits, h.d, tokens, f.group) +
              QuantizedRows::code_bytes(f.v_bits, tokens, h.dv, f.group),
          QuantizedRows::scale_bytes(h.d, tokens, f.group) +
              QuantizedRows::scale_bytes(tokens, h.dv, f.group)};
}

// Of `coded` tokens at once; codes of keys and of values are whole bytes each.
CodeBytes coded_bytes(const EntryShape& h, Index coded, const Format& f) {
  return {(coded * h.d * f.k_bits + 7) / 8 + (coded * h.dv * f.v_bits + 7) / 8,
          QuantizedRows::scale_bytes(h.d, coded, f.group) +
              QuantizedRows::scale_bytes(coded, h.dv, f.group) +
              h.d * outlier_bytes(f.outliers, coded, f.group) +
              coded * outlier_bytes(f.outliers, h.dv, f.group)};
}

// Of `count` tokens, the last `residual` exact.
Index prefill_bytes(const EntryShape& h, Index count, Index residual, const Format& f) {
  const Index coded = std::max<Index>(0, count - residual);
  return coded_bytes(h, coded, f).all() + (count - coded) * h.pair_bytes();
}

// The most that a stream of `count` tokens ever holds: the oldest group is coded once group +
// residual tokens are exact.
Index stream_bytes(const EntryShape& h, Index count, Index residual, const Format& f) {
  Index largest = 0;
  Index coded = 0;
  Index exact = 0;
  for (Index m = 0; m < count; ++m) {
    ++exact;
    largest = std::max(largest, coded + exact * h.pair_bytes());
    if (exact == residual + f.group) {
      exact -= f.group;
      coded += block_bytes(h, f.group, f).all();
    }
  }
  return largest;
}

using BytesOf = Index (*)(const EntryShape&, Index, Index, const Format&);

// From k_bits and v_bits, or bits for both; none if the budget decides.
std::optional<Format> fixed_format(const Params& p) {
  const bool apart = !p.is_auto("k_bits");
  if (!apart && p.is_auto("bits")) {
    return std::nullopt;
  }
  return Format{std::stoi(p.text(apart ? "k_bits" : "bits")),
                std::stoi(p.text(apart ? "v_bits" : "bits")), p.integer("group_size"),
                p.real("outliers")};
}

// The format for `count` tokens: fixed by parameters, or the finest that fits the budget.
Format choose(const EntryShape& h, Index count, std::optional<Index> budget, const Params& p,
              BytesOf bytes_of) {
  if (const std::optional<Format> fixed = fixed_format(p)) {
    return *fixed;
  }
  given_budget(budget, "bits=, or k_bits= and v_bits=");
  const Index residual = p.integer("residual");
  const Index widest = std::max(count - residual, h.dv);
  Index smallest = std::numeric_limits<Index>::max();
  for (const int bits : {8, 4, 3, 2}) {
    for (Index g = p.integer("group_size");; g *= 2) {
      const Format f{bits, bits, g, p.real("outliers")};
      const Index needed = bytes_of(h, count, residual, f);
      if (needed <= *budget) {
        return f;
      }
      smallest = std::min(smallest, needed);
      if (g >= widest) {
        break;
      }
    }
  }
  refuse_budget(
      smallest, *budget, "needs",
      fmt::format(" for {} tokens of which {} stay exact", count, std::min(count, residual)));
}

Figures figures_of(const CodedEntries& coded, const ExactEntries& exact, const Format& f) {
  Figures out = code_figures(coded, exact, f.k_bits, f.v_bits);
  const std::string bits =
      f.k_bits == f.v_bits ? fmt::format("{}", f.k_bits) : fmt::format("{}/{}", f.k_bits, f.v_bits);
  out.insert(out.begin(), {{"bits", bits},
                           {"group", fmt::format("{}", f.group)},
                           {"coded", fmt::format("{}", coded.k.rows())}});
  return out;
}

// Codes `e` in place. Codes are read back at once, since their bytes are known.
CodedEntries code_with(const Task& task, KeptEntries e, const ExactEntries& exact, const Params& p,
                       const Format& f) {
  const bool pre = codes_unrotated(p);
  const DType outlier_type = task.head.dtype == DType::bfloat16 ? DType::bfloat16 : DType::float16;
  CodedEntries out;
  out.k = pre ? unrotated(*task.rope, e.k, e.positions) : std::move(e.k);
  e.k = Matrix();
  read_back(out.k, {f.k_bits, f.group, GroupAlong::tokens, f.outliers, outlier_type});
  if (pre) {
    out.k = rotated(*task.rope, out.k, e.positions);
  }
  out.v = std::move(e.v);
  read_back(out.v, {f.v_bits, f.group, GroupAlong::channels, f.outliers, outlier_type});
  out.bytes = coded_bytes(shape_of(task.head), out.k.rows(), f);
  out.diag = figures_of(out, exact, f);
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Format f = choose(shape_of(head), task.count(), task.budget_bytes, params, prefill_bytes);
  const Index count = std::max<Index>(0, task.count() - params.integer("residual"));
  const auto coded = task.tokens.first(count);
  return hold_coded(head,
                    code_with(task, entries_of(head, coded), {head.k, head.v, coded}, params, f),
                    coded, task.tokens.subspan(coded.size()));
}

class KiviStream final : public TokenStream {
 public:
  KiviStream(const StreamTask& task, const Params& params)
      : head_(task.head),
        residual_(params.integer("residual")),
        format_(choose(shape_of(task.head), stream_middle(task).size(), task.budget_bytes, params,
                       stream_bytes)) {}

  Compressed view() const override {
    const auto count = static_cast<Index>(coded_.size());
    MadeTokens made{Matrix(count, head_.d()), Matrix(count, head_.dv()), {}};
    CodedEntries out;
    Index first = 0;
    for (const Block& b : blocks_) {
      b.read(made, first);
      first += b.tokens;
      out.bytes.codes += b.keys.code_bytes() + b.values.code_bytes();
      out.bytes.scales += b.keys.scale_bytes() + b.values.scale_bytes();
    }
    out.k = std::move(made.k);
    out.v = std::move(made.v);
    out.diag = figures_of(out, {head_.k, head_.v, coded_}, format_);
    return hold_coded(head_, std::move(out), {}, exact_);
  }

 private:
  void take(Index token) override {
    exact_.push_back(token);
    if (static_cast<Index>(exact_.size()) == residual_ + format_.group) {
      const auto cut = exact_.begin() + format_.group;
      const std::vector<Index> oldest(exact_.begin(), cut);
      blocks_.emplace_back(head_, oldest, format_);
      append_all(coded_, oldest);
      exact_.erase(exact_.begin(), cut);
    }
  }

  const KvHead& head_;
  Index residual_;
  Format format_;
  std::vector<Block> blocks_;
  std::vector<Index> coded_;
  std::vector<Index> exact_;
};

void check(const Params& p) {
  if (p.is_auto("k_bits") != p.is_auto("v_bits") ||
      (!p.is_auto("k_bits") && p.values().contains("bits") && !p.is_auto("bits"))) {
    throw InputError(
        fmt::format("{}: got k_bits={} and v_bits={}, expected both without bits, or neither",
                    p.method(), p.text("k_bits"), p.text("v_bits")));
  }
}

std::map<std::string, std::string> resolve(const Params& p, const LayerFacts& layer) {
  require_tables_for_keys(p, layer);
  if (layer.stream && (codes_unrotated(p) || p.real("outliers") > 0.0)) {
    throw InputError(fmt::format("{}: keys=pre and outliers need --protocol prefill", p.method()));
  }
  return {};
}

ParamSpec bits_param(const char* name, const std::string& fallback, const char* doc) {
  ParamSpec out = choice_param(name, {"2", "3", "4", "8"}, doc);
  if (fallback == "auto") {
    out.choices.insert(out.choices.begin(), "auto");
  }
  out.fallback = fallback;
  return out;
}

ParamSpec group_param(const char* note) {
  return integer_param(
      "group_size", "32", 1, 1 << 20, "tokens or channels",
      fmt::format("tokens (keys) and channels (values) that share a scale and a zero{}", note));
}

std::vector<ParamSpec> kvquant_params() {
  return {
      real_param("outliers", "0", 0, 1, "fraction of a group",
                 "entries farthest from their group's median, rounded up, stored in 16 bits with 2 "
                 "bytes of position (KVQuant); larger is more exact and takes more bytes"),
      coded_keys_param()};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "quant-kivi";
  info.family = Family::quantization;
  info.copies = 1;
  info.holds = Holds::placed;
  info.summary = "all tokens at 2, 3, 4 or 8 bits: keys per channel, values per token";
  info.source =
      "Liu et al., KIVI, ICML 2024, arXiv:2402.02750; outliers and keys=pre: Hooper et al., "
      "KVQuant, NeurIPS 2024, arXiv:2401.18079";
  info.departures =
      "3 and 8 bits too; a short last group has its own scale; in a stream keys and values are "
      "coded together in groups of tokens; groups grow to fit the budget; KVQuant: uniform levels "
      "in place of calibrated ones, outliers by count in place of thresholds";
  info.params = joined(
      {{bits_param("bits", "auto",
                   "bits per number, in place of a budget; auto: the most that fit the budget"),
        bits_param("k_bits", "auto", "bits of keys, with v_bits in place of bits"),
        bits_param("v_bits", "auto", "bits of values, with k_bits in place of bits"),
        group_param("; a budget may double it"),
        integer_param("residual", "128", 0, 1e9, "tokens", "most recent tokens that stay exact")},
       kvquant_params()});
  info.grid = {"group_size=32,64,128;residual=0,32,128"};
  info.sizes = {"bits", "k_bits", "v_bits"};
  info.joint_sizes = true;
  info.facts = [](const Params& p) {
    check(p);
    return JobFacts{.rope = codes_unrotated(p)};
  };
  info.resolve = resolve;
  Method method{info, compress, open_as<KiviStream>};
  method.quantizer =
      Quantizer{joined({{bits_param("k_bits", "4", "bits of keys"),
                         bits_param("v_bits", "4", "bits of values"), group_param("")},
                        kvquant_params()}),
                [](const EntryShape& h, Index count, const Params& p) {
                  return coded_bytes(h, count, *fixed_format(p)).all();
                },
                [](const Task& task, const KeptEntries& e, const Params& p) {
                  return code_with(task, e, {e.k, e.v}, p, *fixed_format(p));
                },
                codes_unrotated};
  return method;
}

}  // namespace kvbench::method_quant_kivi
