// think: every token stays, without the key channels that count least for the last queries.
// [1] Xu et al., "ThinK: Thinner Key Cache by Query-Driven Pruning", ICLR 2025, arXiv:2407.21018.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: ThinKPress.
// Channel c scores mean q_c^2 * mean k_c^2: over the last `window` scoring queries of the group,
// and over the task's keys. The floor(ratio d) lowest are dropped, ties from the highest channel
// down, and read back as 0. Without scoring queries all scores are 0. A budget drops as few
// channels as fit. Aux: one bit per channel. As a quantizer the same, of another method's entries.
//
// In: K [m, d], V [m, dv], Q [group, window, d]. Out: m pairs. float64, channels in fixed order.
// Time O((m + group window) d).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/scores.hpp"

namespace kvbench::method_think {
namespace {

constexpr double kBelowOne = 1.0 - 0x1p-53;

Index mask_bytes(Index d) {
  return (d + 7) / 8;
}

// Without the mask.
Index pair_bytes(const EntryShape& s, Index count, Index dropped) {
  return count * (s.d - dropped + s.dv) * s.element_bytes;
}

Index dropped_by_ratio(const Params& params, Index d) {
  const auto dropped = static_cast<Index>(params.real("ratio") * static_cast<double>(d));
  return std::min(dropped, d - 1);
}

Index channels_to_drop(const Task& task, const Params& params) {
  const EntryShape shape = shape_of(task.head);
  if (!params.is_auto("ratio")) {
    return dropped_by_ratio(params, shape.d);
  }
  const Index budget = given_budget(task.budget_bytes, "ratio=");
  Index needed = 0;
  for (Index dropped = 0; dropped < shape.d; ++dropped) {
    needed = pair_bytes(shape, task.count(), dropped) + mask_bytes(shape.d);
    if (needed <= budget) {
      return dropped;
    }
  }
  refuse_budget(needed, budget, "needs",
                fmt::format(" for {} tokens with one channel of their keys", task.count()));
}

// Channels of `keys` to keep, ascending.
std::vector<Index> channels_to_keep(const Task& task, MatrixView keys, Index dropped,
                                    const Params& params) {
  const auto d = static_cast<std::size_t>(keys.cols);
  std::vector<double> squares(d, 0.0);
  const auto add = [&squares](std::span<const float> row) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const auto x = static_cast<double>(row[c]);
      squares[c] = std::fma(x, x, squares[c]);
    }
  };
  for (Index i = 0; i < keys.rows; ++i) {
    add(keys.row_span(i));
  }
  std::vector<double> scores = std::move(squares);
  squares.assign(d, 0.0);
  const Range window = {std::max(task.scoring.begin, task.scoring.end - params.integer("window")),
                        task.scoring.end};
  for (const Matrix& queries : task.head.q) {
    for (Index p = window.begin; p < window.end; ++p) {
      add(queries.view().row_span(p - task.head.q_start()));
    }
  }
  // The same for all channels; limits the size of products.
  const auto count = static_cast<double>(keys.rows) *
                     static_cast<double>(std::max<Index>(1, window.size() * task.head.group()));
  for (std::size_t c = 0; c < d; ++c) {
    scores[c] *= squares[c] / count;
  }
  return top_indices(scores, keys.cols - dropped);
}

// Sets all other channels to 0.
void thin(Matrix& keys, std::span<const Index> channels) {
  std::vector<bool> kept(static_cast<std::size_t>(keys.cols()), false);
  for (const Index c : channels) {
    kept[c] = true;
  }
  for (Index i = 0; i < keys.rows(); ++i) {
    for (Index c = 0; c < keys.cols(); ++c) {
      keys.row(i)[c] = kept[c] ? keys.row(i)[c] : 0.0F;
    }
  }
}

// Codes `e` in place.
CodedEntries code_with(const Task& task, KeptEntries e, const ExactEntries& exact, Index dropped,
                       const Params& params) {
  const EntryShape shape = shape_of(task.head);
  CodedEntries out;
  out.k = std::move(e.k);
  out.v = std::move(e.v);
  thin(out.k, channels_to_keep(task, out.k, dropped, params));
  out.bytes = {pair_bytes(shape, out.k.rows(), dropped), mask_bytes(shape.d)};
  out.diag = {{"channels", fmt::format("{}", shape.d - dropped)},
              {"k_error", code_error(out.k, exact.k, exact.at)}};
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  if (task.tokens.empty()) {
    return {};
  }
  const Index dropped = channels_to_drop(task, params);
  if (dropped == 0) {
    Compressed out = hold(task.tokens);
    out.aux_bytes = mask_bytes(head.d());
    out.diag = {{"channels", fmt::format("{}", head.d())}};
    return out;
  }
  return hold_coded(head,
                    code_with(task, entries_of(head, task.tokens), {head.k, head.v, task.tokens},
                              dropped, params),
                    task.tokens);
}

Index coded_bytes(const EntryShape& shape, Index count, const Params& params) {
  return count == 0
             ? 0
             : pair_bytes(shape, count, dropped_by_ratio(params, shape.d)) + mask_bytes(shape.d);
}

CodedEntries code(const Task& task, const KeptEntries& e, const Params& params) {
  return code_with(task, e, {e.k, e.v}, dropped_by_ratio(params, task.head.d()), params);
}

std::vector<ParamSpec> params_with(const char* ratio) {
  return {real_param("ratio", ratio, 0.0, kBelowOne, "",
                     "fraction of key channels to drop, in place of a budget; one always stays; "
                     "larger takes fewer bytes"),
          integer_param(
              "window", "32", 1, 1e9, "queries",
              "how many of the last scoring queries rank the channels; larger averages over more")};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "think";
  info.family = Family::quantization;
  info.copies = 1;
  info.holds = Holds::placed;
  info.summary = "all tokens, without the key channels that count least for the last queries";
  info.source = "Xu et al., ThinK, ICLR 2025, arXiv:2407.21018; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "only the middle's keys rank and lose channels (kvpress: all keys of the cache); a budget "
      "drops as few channels as fit";
  info.params = params_with("auto");
  info.sizes = {"ratio"};
  info.grid = {"window=8,32,128"};
  info.facts = [](const Params& p) { return JobFacts{.scoring = {{.last = p.integer("window")}}}; };
  Method out{info, compress};
  out.quantizer = {params_with("0.5"), coded_bytes, code};
  return out;
}

}  // namespace kvbench::method_think
