#include "algorithms/shared/heavy_recent.hpp"

#include <algorithm>
#include <iterator>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "attention/nearest_keys.hpp"

namespace kvbench {

std::vector<ParamSpec> heavy_recent_params(const std::vector<ParamSpec>& own) {
  return joined(
      {size_params(),
       {real_param("heavy_ratio", "0.5", 0, 1, "share of the kept tokens",
                   "heavy hitters, rounded down to whole tokens; the others are the most recent"),
        reduce_param()},
       own});
}

Index recent_of(const Params& params, Index kept) {
  return kept - floor_share(params.real("heavy_ratio"), kept);
}

Split split_heavy_recent(const Task& task, const Params& params, Index kept) {
  Split out;
  out.scores = accumulated_scores(task, params);
  const Index recent = recent_of(params, kept);
  const auto older = task.tokens.first(task.count() - recent);
  out.kept = keep_top(older, gather_scores(out.scores, older), kept - recent);
  std::set_difference(older.begin(), older.end(), out.kept.begin(), out.kept.end(),
                      std::back_inserter(out.evicted));
  append_all(out.kept, task.tokens.last(recent));
  return out;
}

std::vector<double> cosines(MatrixView keys, const Split& split, std::span<const Index> target) {
  std::vector<double> out = inverse_norms(keys, split.evicted);
  const std::vector<double> inverse = inverse_norms(keys, split.kept);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Index kept = split.kept[target[i]];
    out[i] = inner_product(keys.row_span(split.evicted[i]), keys.row_span(kept)) * out[i] *
             inverse[target[i]];
  }
  return out;
}

Compressed hold_unchanged(const KvHead& head, std::span<const Index> kept,
                          const std::function<bool(std::size_t)>& is_changed) {
  Compressed out;
  std::vector<Index> changed;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    (is_changed(i) ? changed : out.held.tokens).push_back(kept[i]);
  }
  out.made.k = copy_rows(head.k, changed);
  out.made.v = copy_rows(head.v, changed);
  out.made.positions = std::move(changed);
  return out;
}

}  // namespace kvbench
