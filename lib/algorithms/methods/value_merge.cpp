// value-merge: evicts as h2o does, and adds each evicted value to that of the kept token with the
// most similar key. Keys stay.
// [1] MergingPress of NVIDIA/kvpress, commit 8bb29b9, after Bolya et al., "Token Merging", ICLR
//     2023, arXiv:2210.09461, and Wan et al., "D2O", ICLR 2025, arXiv:2406.13035.
// [2] Zhang et al., "H2O", NeurIPS 2023, arXiv:2306.14048: the eviction.
// A kept value v and those v_i of the evicted tokens nearest to it become
//   (v + sum w_i v_i) / (1 + sum w_i),  w_i = max(0, cos_i) |v_i| / (|v_i| + |v| + 1e-6),
// with v before any merge, so that the order does not matter. No weight, no bytes beside pairs.
// In: K [m, d], V [m, dv], accumulated attention [m]. Out: B tokens; those whose value changed are
// made. A zero key has cosine 0 to everything; ties go to the lowest position. float64.
// Time O((m - B) B d), memory O(256 B + B dv).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "algorithms/shared/heavy_recent.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "attention/nearest_keys.hpp"
#include "core/float16.hpp"

namespace kvbench::method_value_merge {
namespace {

constexpr double kMinLength = 1e-6;  // [1]'s, for two zero values

double length(std::span<const float> x) {
  return std::sqrt(squared_norm(x));
}

// What is merged into one kept token.
struct Received {
  double weight = 0.0;
  std::vector<double> sum;  // [dv]; empty: nothing
};

Compressed compress(const Task& task, const Params& params) {
  const Index count = pairs_to_keep(task, params);
  Compressed out;
  out.diag = {{"merged", "0"}};
  if (count == 0) {
    return out;
  }
  const Split split = split_heavy_recent(task, params, count);
  const std::vector<Index> target = task.backend.nearest_keys(task.head, split.kept, split.evicted);
  const std::vector<double> cosine = cosines(task.head.k, split, target);
  const MatrixView values = task.head.v;
  std::vector<Received> received(split.kept.size());
  Index merged = 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const std::span<const float> value = values.row_span(split.evicted[i]);
    const double own = length(value);
    const double kept = length(values.row_span(split.kept[target[i]]));
    const double weight = std::max(0.0, cosine[i]) * own / (own + kept + kMinLength);
    if (!(weight > 0.0)) {
      continue;
    }
    ++merged;
    Received& t = received[target[i]];
    t.weight += weight;
    t.sum.resize(value.size(), 0.0);
    for (std::size_t c = 0; c < value.size(); ++c) {
      t.sum[c] = std::fma(weight, static_cast<double>(value[c]), t.sum[c]);
    }
  }
  out = hold_unchanged(task.head, split.kept,
                       [&](std::size_t place) { return !received[place].sum.empty(); });
  Index row = 0;
  for (const Received& t : received) {
    if (t.sum.empty()) {
      continue;
    }
    float* v = out.made.v.row(row++);
    for (std::size_t c = 0; c < t.sum.size(); ++c) {
      v[c] = stored(task.head.dtype, (static_cast<double>(v[c]) + t.sum[c]) / (1.0 + t.weight));
    }
  }
  out.diag = {{"merged", fmt::format("{}", merged)}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "value-merge";
  info.family = Family::merging;
  info.copies = 2.5;
  info.summary = "h2o's eviction; evicted values blended into those of the nearest kept keys";
  info.source = "MergingPress of NVIDIA/kvpress 8bb29b9; Zhang et al., arXiv:2306.14048";
  info.departures = "evicts as h2o (kvpress: by any score); one rounding, in float64";
  info.params = heavy_recent_params();
  info.grid = {"heavy_ratio=0.1,0.25,0.5,0.75,1;reduce=mean,max"};
  info.facts = [](const Params&) { return JobFacts{.scoring = {Scoring()}}; };
  return {info, compress};
}

}  // namespace kvbench::method_value_merge
