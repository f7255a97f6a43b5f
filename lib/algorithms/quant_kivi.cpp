// quant-kivi: every token stays, keys quantised per channel and values per token; the last
// `residual` tokens exact.
// [1] Liu et al., "KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache", ICML 2024,
//     arXiv:2402.02750.
// Departs from [1]: 8 bits too; a last group of fewer than group_size tokens is quantised with a
// scale of its own (prefill); in a stream keys and values leave the residual together, group_size
// tokens at a time, where [1] quantises values one by one; under a budget the groups grow.
// In: K [m, d], V [m, dv]. Out: m - residual read-back pairs of weight 1 and the residual as it is.
//
// Keys: for each group of group_size tokens and each channel one scale and zero. Values: for each
// token one scale and zero per group_size channels. Under a budget the first of these that fits is
// taken: 8, 4, 2 bits, and for each group_size, 2 group_size, 4 group_size, ... up to one group.
// A stream looks at the most that it will hold up to the stream's length, known by the protocol.
// Codes are packed; scales and zeros are float16 and count as aux. Attending reads codes back on
// the fly (fused in [1]), so nothing is charged as transient. Time O(m (d + dv)).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"
#include "algorithms/stream_tokens.hpp"
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
    std::vector<float> channel(static_cast<std::size_t>(tokens));
    for (Index c = 0; c < out.k.cols(); ++c) {
      keys.read(c, channel);
      for (Index i = 0; i < tokens; ++i) {
        out.k.row(first + i)[c] = channel[static_cast<std::size_t>(i)];
      }
    }
    for (Index i = 0; i < tokens; ++i) {
      values.read(i, {out.v.row(first + i), static_cast<std::size_t>(out.v.cols())});
    }
  }
};

Index block_payload(const KvHead& head, Index tokens, const Format& f) {
  return QuantizedRows::code_bytes(f.bits, head.d(), tokens, f.group) +
         QuantizedRows::code_bytes(f.bits, tokens, head.dv(), f.group);
}

Index block_scales(const KvHead& head, Index tokens, const Format& f) {
  return QuantizedRows::scale_bytes(head.d(), tokens, f.group) +
         QuantizedRows::scale_bytes(tokens, head.dv(), f.group);
}

Index block_bytes(const KvHead& head, Index tokens, const Format& f) {
  return block_payload(head, tokens, f) + block_scales(head, tokens, f);
}

using BlockBytes = Index (*)(const KvHead&, Index, const Format&);

// Over all blocks of `coded` tokens.
Index sum_blocks(const KvHead& head, Index coded, const Format& f, BlockBytes bytes) {
  const Index rest = coded % f.group;
  return coded / f.group * bytes(head, f.group, f) + (rest > 0 ? bytes(head, rest, f) : 0);
}

// Bytes that `count` tokens take once compressed, the last `residual` exact.
Index prefill_bytes(const KvHead& head, Index count, Index residual, const Format& f) {
  const Index coded = std::max<Index>(0, count - residual);
  return sum_blocks(head, coded, f, block_bytes) + (count - coded) * head.pair_bytes();
}

// The most that a stream of `count` tokens ever holds: tokens wait exactly until group + residual
// of them are there, and the last to come is there before the oldest group is coded.
Index stream_bytes(const KvHead& head, Index count, Index residual, const Format& f) {
  Index most = 0;
  Index coded = 0;
  Index exact = 0;
  for (Index m = 0; m < count; ++m) {
    ++exact;
    most = std::max(most, coded + exact * head.pair_bytes());
    if (exact == residual + f.group) {
      exact -= f.group;
      coded += block_bytes(head, f.group, f);
    }
  }
  return most;
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
  Index least = std::numeric_limits<Index>::max();
  for (const int bits : {8, 4, 2}) {
    for (Index g = group;; g *= 2) {
      const Format f{bits, g};
      const Index needed = bytes_of(head, count, residual, f);
      if (needed <= *budget) {
        return f;
      }
      least = std::min(least, needed);
      if (g >= widest) {
        break;
      }
    }
  }
  throw Infeasible(fmt::format("needs {} bytes for {} tokens of which {} stay exact, budget {}",
                               least, count, std::min(count, residual), *budget),
                   least);
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

// The cache but for its coded bytes: `made` read back of the tokens `coded`, `exact` after them.
Compressed assemble(const KvHead& head, MadeTokens made, std::span<const Index> coded,
                    std::span<const Index> exact, const Format& f) {
  Compressed out;
  out.held.tokens.assign(exact.begin(), exact.end());
  out.payload_bytes = static_cast<Index>(exact.size()) * head.pair_bytes();
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
  const auto coded = task.tokens.first(static_cast<std::size_t>(count));
  MadeTokens made;
  made.k = read_back(head.k, coded, {f.bits, f.group, GroupAlong::tokens}, task.device);
  made.v = read_back(head.v, coded, {f.bits, f.group, GroupAlong::channels}, task.device);
  Compressed out = assemble(head, std::move(made), coded, task.tokens.subspan(coded.size()), f);
  *out.payload_bytes += sum_blocks(head, count, f, block_payload);
  out.aux_bytes = sum_blocks(head, count, f, block_scales);
  return out;
}

class KiviStream final : public StreamCache {
 public:
  KiviStream(const StreamTask& task, const Params& params)
      : head_(task.head),
        residual_(params.integer("residual")),
        format_(choose(task.head, stream_middle(task).size(), task.budget_bytes, params,
                       stream_bytes)) {}

  void append(Index, Index leaving) override {
    if (leaving < 0) {
      return;
    }
    exact_.push_back(leaving);
    if (static_cast<Index>(exact_.size()) == residual_ + format_.group) {
      const auto cut = exact_.begin() + format_.group;
      const std::vector<Index> oldest(exact_.begin(), cut);
      blocks_.emplace_back(head_, oldest, format_);
      coded_.insert(coded_.end(), oldest.begin(), oldest.end());
      exact_.erase(exact_.begin(), cut);
    }
  }

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
    Compressed out = assemble(head_, std::move(made), coded_, exact_, format_);
    for (const Block& b : blocks_) {
      *out.payload_bytes += b.keys.code_bytes() + b.values.code_bytes();
      out.aux_bytes += b.keys.scale_bytes() + b.values.scale_bytes();
    }
    return out;
  }

 private:
  const KvHead& head_;
  Index residual_;
  Format format_;
  std::vector<Block> blocks_;
  std::vector<Index> coded_;
  std::vector<Index> exact_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<KiviStream>(task, params);
}

}  // namespace

Method method_quant_kivi() {
  MethodInfo info;
  info.name = "quant-kivi";
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
  return {info, compress, open_stream};
}

}  // namespace kvbench
