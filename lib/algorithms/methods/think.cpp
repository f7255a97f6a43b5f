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
#include <numeric>

#include "algorithms/shared/coded_keys.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/scores.hpp"

namespace kvbench {
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

// Channels to keep, ascending, of rows `rows` of `keys`.
std::vector<Index> channels_to_keep(const Task& task, MatrixView keys, std::span<const Index> rows,
                                    Index dropped, const Params& params) {
  const auto d = static_cast<std::size_t>(keys.cols);
  std::vector<double> squares(d, 0.0);
  const auto add = [&squares](std::span<const float> row) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const auto x = static_cast<double>(row[c]);
      squares[c] = std::fma(x, x, squares[c]);
    }
  };
  for (const Index i : rows) {
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
  const auto count = static_cast<double>(rows.size()) *
                     static_cast<double>(std::max<Index>(1, window.size() * task.head.group()));
  for (std::size_t c = 0; c < d; ++c) {
    scores[c] *= squares[c] / count;
  }
  return top_indices(scores, keys.cols - dropped);
}

// The keys with 0 in all other channels.
Matrix thinned(MatrixView keys, std::span<const Index> rows, std::span<const Index> channels) {
  Matrix out(static_cast<Index>(rows.size()), keys.cols);
  for (Index i = 0; i < out.rows(); ++i) {
    for (const Index c : channels) {
      out.row(i)[c] = keys.row(rows[i])[c];
    }
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  if (task.tokens.empty()) {
    return {};
  }
  const Index dropped = channels_to_drop(task, params);
  const Figures channels = {{"channels", fmt::format("{}", head.d() - dropped)}};
  if (dropped == 0) {
    Compressed out = hold(task.tokens);
    out.aux_bytes = mask_bytes(head.d());
    out.diag = channels;
    return out;
  }
  Compressed out;
  out.made.k =
      thinned(head.k, task.tokens, channels_to_keep(task, head.k, task.tokens, dropped, params));
  out.made.v = copy_rows(head.v, task.tokens);
  out.made.positions.assign(task.tokens.begin(), task.tokens.end());
  out.quantized = task.count();
  out.payload_bytes = pair_bytes(shape_of(head), task.count(), dropped);
  out.aux_bytes = mask_bytes(head.d());
  out.diag = channels;
  out.diag.emplace_back("k_error", code_error(out.made.k, head.k, task.tokens));
  return out;
}

Index coded_bytes(const EntryShape& shape, Index count, const Params& params) {
  return count == 0
             ? 0
             : pair_bytes(shape, count, dropped_by_ratio(params, shape.d)) + mask_bytes(shape.d);
}

CodedEntries code(const Task& task, const KeptEntries& entries, const Params& params) {
  const Index dropped = dropped_by_ratio(params, task.head.d());
  std::vector<Index> rows(static_cast<std::size_t>(entries.k.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  CodedEntries out;
  out.k = thinned(entries.k, rows, channels_to_keep(task, entries.k, rows, dropped, params));
  out.v = entries.v;
  out.bytes = {pair_bytes(shape_of(task.head), entries.k.rows(), dropped),
               mask_bytes(task.head.d())};
  out.diag = {{"channels", fmt::format("{}", task.head.d() - dropped)},
              {"k_error", code_error(out.k, entries.k)}};
  return out;
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

Method method_think() {
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

}  // namespace kvbench
