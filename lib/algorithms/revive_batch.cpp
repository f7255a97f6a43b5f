#include "algorithms/revive_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "algorithms/revive_report.hpp"
#include "algorithms/size.hpp"
#include "attention/merge_rows.hpp"

namespace kvbench {
namespace {

void add_sketch(Compressed& out, const Task& task, const RevivePlan& plan,
                std::span<const Index> vague) {
  const KvHead& head = task.head;
  const auto count = static_cast<Index>(vague.size());
  CountSketch sketch(plan.sketch, task.rng.stream("sketch"));
  sketch.fill(vague, head.k, head.v);
  out.made.k = Matrix(count, head.d());
  out.made.v = Matrix(count, head.dv());
  for (Index r = 0; r < count; ++r) {
    sketch.key(vague[static_cast<std::size_t>(r)], out.made.k.row(r));
    sketch.value(vague[static_cast<std::size_t>(r)], out.made.v.row(r));
  }
  *out.payload_bytes += plan.sketch.payload_bytes();
  out.aux_bytes = plan.candidates * kRevivePlaceBytes + plan.sketch.aux_bytes();
  out.transient_bytes = count * head.pair_bytes();
  out.degenerate = plan.degenerate();
  const ReviveErrors errors = revive_errors(head, vague, out.made.k, out.made.v, 0);
  const auto figures = sketch_figures(errors, count, plan.sketch);
  out.diag.insert(out.diag.end(), figures.begin(), figures.end());
  out.diag.emplace_back("overflows", fmt::format("{}", sketch.overflows()));
}

void add_mean(Compressed& out, const Task& task, std::span<const Index> vague) {
  const KvHead& head = task.head;
  RowMerge all;
  all.members.assign(vague.begin(), vague.end());
  all.lists = {{0, static_cast<Index>(vague.size())}};
  out.made.k = merge_rows(head.k, all, head.dtype, task.device);
  out.made.v = merge_rows(head.v, all, head.dtype, task.device);
  out.made.weights = {static_cast<float>(vague.size())};
  *out.payload_bytes += head.pair_bytes();
  out.aux_bytes = kReviveCountBytes;
  const ReviveErrors errors = revive_errors(head, vague, out.made.k, out.made.v, 0, /*step=*/0);
  out.diag.emplace_back("k_error", revive_number(errors.k_error));
  out.diag.emplace_back("v_error", revive_number(errors.v_error));
}

}  // namespace

Compressed revive_batch(const Task& task, const ReviveOptions& options, const RevivePlan& plan,
                        std::span<const double> scores) {
  Compressed out;
  if (plan.all_exact) {
    out.held.tokens.assign(task.tokens.begin(), task.tokens.end());
    return out;
  }
  // The plan's tokens are fewer than the task's: all would have fitted otherwise.
  const auto older = task.tokens.first(task.tokens.size() - static_cast<std::size_t>(plan.recent));
  out.held.tokens = keep_top(older, scores.first(older.size()), plan.candidates, task.device);
  std::vector<Index> vague;
  std::set_difference(older.begin(), older.end(), out.held.tokens.begin(), out.held.tokens.end(),
                      std::back_inserter(vague));
  out.held.tokens.insert(out.held.tokens.end(), older.end(), task.tokens.end());
  out.payload_bytes = (plan.recent + plan.candidates) * task.head.pair_bytes();
  out.diag = {{"vague", fmt::format("{}", vague.size())}};
  switch (options.vague) {
    case Vague::sketch: add_sketch(out, task, plan, vague); break;
    case Vague::none: break;
    case Vague::mean: add_mean(out, task, vague); break;
  }
  return out;
}

}  // namespace kvbench
