// quant-kivi: every token stays, keys quantised per channel and values per token; the last
// `residual` tokens exact.
// [1] Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024,
//     arXiv:2402.02750.
// In: K [m, d], V [m, dv]. Out: m - residual read-back pairs of weight 1 and the residual as it is.
//
// Keys: for each group of group_size tokens and each channel one scale and zero. Values: for each
// token one scale and zero per group_size channels. Under a budget the first of these that fits is
// taken: 8, 4, 2 bits, and for each group_size, 2 group_size, 4 group_size, ... up to one group.
// A stream goes by the largest size that it will have up to its length, known by the protocol.
// Codes are packed; scales and zeros are float16 and count as aux. Attending reads codes back on
// the fly (fused in [1]), so nothing is charged as transient. Time O(m (d + dv)).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"
#include "attention/quantize.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

struct Format {
  int bits = 8;
  Index group = 32;
};

// A stream's group of tokens as codes: its keys channel by channel, its values token by token.
struct Block {
  Index tokens;
  QuantizedRows keys;    // [d] rows of `tokens`
  QuantizedRows values;  // [tokens] rows of dv

  Block(const KvHead& head, std::span<const Index> positions, const Format& f)
      : tokens(static_cast<Index>(positions.size())),
        keys(f.bits, tokens, f.group),
        values(f.bits, head.dv(), f.group) {
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

  // Into rows `first` and on.
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

struct Bytes {
  Index codes = 0;
  Index scales = 0;

  Index all() const { return codes + scales; }
};

// Of `count` blocks of `tokens`.
Bytes block_bytes(const KvHead& head, Index count, Index tokens, const Format& f) {
  return {count * (QuantizedRows::code_bytes(f.bits, head.d(), tokens, f.group) +
                   QuantizedRows::code_bytes(f.bits, tokens, head.dv(), f.group)),
          count * (QuantizedRows::scale_bytes(head.d(), tokens, f.group) +
                   QuantizedRows::scale_bytes(tokens, head.dv(), f.group))};
}

// Of all blocks of `coded` tokens.
Bytes coded_bytes(const KvHead& head, Index coded, const Format& f) {
  const Bytes whole = block_bytes(head, coded / f.group, f.group, f);
  const Bytes rest = coded % f.group > 0 ? block_bytes(head, 1, coded % f.group, f) : Bytes{};
  return {whole.codes + rest.codes, whole.scales + rest.scales};
}

// Bytes that `count` tokens take once compressed, the last `residual` exact.
Index prefill_bytes(const KvHead& head, Index count, Index residual, const Format& f) {
  const Index coded = std::max<Index>(0, count - residual);
  return coded_bytes(head, coded, f).all() + (count - coded) * head.pair_bytes();
}

// The most that a stream of `count` tokens ever holds: tokens wait exactly until group + residual
// of them are there, and the last to come is there before the oldest group is coded.
Index stream_bytes(const KvHead& head, Index count, Index residual, const Format& f) {
  Index largest = 0;
  Index coded = 0;
  Index exact = 0;
  for (Index m = 0; m < count; ++m) {
    ++exact;
    largest = std::max(largest, coded + exact * head.pair_bytes());
    if (exact == residual + f.group) {
      exact -= f.group;
      coded += block_bytes(head, 1, f.group, f).all();
    }
  }
  return largest;
}

using BytesOf = Index (*)(const KvHead&, Index, Index, const Format&);

// The format for `count` tokens: given, or the finest that the budget holds.
Format choose(const KvHead& head, Index count, std::optional<Index> budget, const Params& p,
              BytesOf bytes_of) {
  const Index residual = p.integer("residual");
  const Index group = p.integer("group_size");
  if (!p.is_auto("bits")) {
    return {std::stoi(p.text("bits")), group};
  }
  if (!budget) {
    throw InputError("no size: give a budget or bits=");
  }
  const Index widest = std::max(count - residual, head.dv());
  Index smallest = std::numeric_limits<Index>::max();
  for (const int bits : {8, 4, 2}) {
    for (Index g = group;; g *= 2) {
      const Format f{bits, g};
      const Index needed = bytes_of(head, count, residual, f);
      if (needed <= *budget) {
        return f;
      }
      smallest = std::min(smallest, needed);
      if (g >= widest) {
        break;
      }
    }
  }
  throw Infeasible(fmt::format("needs {} bytes for {} tokens of which {} stay exact, budget {}",
                               smallest, count, std::min(count, residual), *budget),
                   smallest);
}

// |read back - exact|_F / |exact|_F, for the report.
class ErrorSum {
 public:
  void add(const float* made, const float* exact, Index count) {
    for (Index c = 0; c < count; ++c) {
      const double x = static_cast<double>(exact[c]);
      const double e = static_cast<double>(made[c]) - x;
      error_ = std::fma(e, e, error_);
      norm_ = std::fma(x, x, norm_);
    }
  }
  std::string text() const {
    return fmt::format("{:.6g}", error_ == 0.0 ? 0.0 : std::sqrt(error_ / norm_));
  }

 private:
  double error_ = 0.0;
  double norm_ = 0.0;
};

// The cache: `made` read back of the tokens `coded`, `exact` after them.
Compressed assemble(const KvHead& head, MadeTokens made, std::span<const Index> coded,
                    std::span<const Index> exact, const Format& f) {
  Compressed out = hold(exact);
  const Bytes bytes = coded_bytes(head, static_cast<Index>(coded.size()), f);
  out.payload_bytes = static_cast<Index>(exact.size()) * head.pair_bytes() + bytes.codes;
  out.aux_bytes = bytes.scales;
  ErrorSum k_error, v_error;
  for (std::size_t i = 0; i < coded.size(); ++i) {
    const auto row = static_cast<Index>(i);
    k_error.add(made.k.row(row), head.k.row(coded[i]), head.d());
    v_error.add(made.v.row(row), head.v.row(coded[i]), head.dv());
  }
  out.made = std::move(made);
  out.quantised = static_cast<Index>(coded.size());
  out.diag = {{"bits", fmt::format("{}", f.bits)},
              {"group", fmt::format("{}", f.group)},
              {"coded", fmt::format("{}", coded.size())},
              {"k_error", k_error.text()},
              {"v_error", v_error.text()}};
  return out;
}

// Codes are read back as soon as they are made: what they would take is known ahead.
Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Format f = choose(head, task.count(), task.budget_bytes, params, prefill_bytes);
  const Index count = std::max<Index>(0, task.count() - params.integer("residual"));
  const auto coded = task.tokens.first(count);
  MadeTokens made;
  made.k = read_back(head.k, coded, {f.bits, f.group, GroupAlong::tokens});
  made.v = read_back(head.v, coded, {f.bits, f.group, GroupAlong::channels});
  return assemble(head, std::move(made), coded, task.tokens.subspan(coded.size()), f);
}

class KiviStream final : public TokenStream {
 public:
  KiviStream(const StreamTask& task, const Params& params)
      : head_(task.head),
        residual_(params.integer("residual")),
        format_(choose(task.head, stream_middle(task).size(), task.budget_bytes, params,
                       stream_bytes)) {}

  Compressed view() const override {
    const auto count = static_cast<Index>(coded_.size());
    MadeTokens made;
    made.k = Matrix(count, head_.d());
    made.v = Matrix(count, head_.dv());
    Index first = 0;
    for (const Block& b : blocks_) {
      b.read(made, first);
      first += b.tokens;
    }
    return assemble(head_, std::move(made), coded_, exact_, format_);
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

Index scratch_bytes(const Params& /*params*/, const LayerFacts& l, Index middle, Index kept) {
  // In a stream the codes too, in arrays that grow by doubling, and lists of tokens.
  return made_bytes(l, middle) + (l.stream ? kept * l.pair_bytes * 3 / 2 + 32 * middle : 0);
}

}  // namespace

Method method_quant_kivi() {
  MethodInfo info;
  info.name = "quant-kivi";
  info.family = Family::quantization;
  info.summary = "all tokens at 2, 4 or 8 bits: keys per channel, values per token";
  info.source = "Liu et al., KIVI, ICML 2024, arXiv:2402.02750";
  info.departures =
      "8 bits too; a short last group has its own scale; in a stream keys and values are coded "
      "together in groups of tokens; groups grow where the budget asks";
  info.params = {
      choice_param("bits", {"auto", "2", "4", "8"},
                   "bits per number, in place of a budget; auto: the most that the budget holds"),
      integer_param("group_size", "32", 1, 1 << 20, "tokens or channels",
                    "tokens (keys) and channels (values) that share a scale and a zero; a budget "
                    "may double it"),
      integer_param("residual", "128", 0, 1e9, "tokens", "most recent tokens that stay exact"),
  };
  info.grid = {"group_size=32,64,128;residual=0,32,128"};
  info.sizes = {"bits"};
  info.scratch_bytes = scratch_bytes;
  return {info, compress, open_as<KiviStream>};
}

}  // namespace kvbench
