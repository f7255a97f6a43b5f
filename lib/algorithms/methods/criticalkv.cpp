// criticalkv: half of the tokens by SnapKV's scores, the others by score times what their value
// adds to the layer's output.
// [1] Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
//     Perspective", 2025, arXiv:2502.03805.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: CriticalKVPress over SnapKVPress.
// floor(B/2) tokens with the largest scores first; then of the others those with the largest
//   (score + 1e-4) * mean over the group's query heads h of |W_h v|_1,
// W_h [hidden, dv] the head's columns of the layer's output projection.
// In: V [m, dv], W [hidden, group dv], scores [m]. Out: B tokens of weight 1. float64.
// Time O(group m dv hidden) beside the scores, memory O(256 hidden + dv hidden).
#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "attention/inner_products.hpp"
#include "attention/top_k.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kRows = 256;  // values at a time

void require_projection(bool there) {
  if (!there) {
    throw InputError(
        "criticalkv: needs the layer's output projection (o_proj), which this layer does not have; "
        "expected a trace dumped with it");
  }
}

// Mean over the group of |W_h v|_1 of each token's value, [m].
std::vector<double> output_norms(const Task& task) {
  const Index dv = task.head.dv();
  const Matrix& w = *task.o_proj;
  const auto group = static_cast<Index>(task.head.q.size());
  std::vector<double> out(task.tokens.size(), 0.0);
  MatrixD head_t(dv, w.rows()), values, products;
  for (Index h = 0; h < group; ++h) {
    for (Index r = 0; r < w.rows(); ++r) {
      for (Index t = 0; t < dv; ++t) {
        head_t.row(t)[r] = static_cast<double>(w.row(r)[h * dv + t]);
      }
    }
    for (std::size_t b = 0; b < out.size(); b += kRows) {
      const std::size_t count = std::min(kRows, out.size() - b);
      gather_rows(task.head.v, task.tokens.subspan(b, count), values);
      inner_products(values, head_t, products);
      for (std::size_t i = 0; i < count; ++i) {
        const double* row = products.row(static_cast<Index>(i));
        double sum = 0.0;
        for (Index r = 0; r < w.rows(); ++r) {
          sum += std::abs(row[r]);
        }
        out[b + i] += sum / static_cast<double>(group);
      }
    }
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  require_projection(task.o_proj != nullptr);
  const Index kept = pairs_to_keep(task, params);
  std::vector<double> scores = snapkv_scores(task, params);
  const std::vector<Index> first =
      top_places(scores, floor_share(params.real("first_share"), kept));
  const std::vector<double> norms = output_norms(task);
  const double epsilon = params.real("epsilon");
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = (scores[i] + epsilon) * norms[i];
  }
  for (const Index i : first) {
    scores[i] = std::numeric_limits<double>::max();
  }
  return hold(keep_top(task.tokens, scores, kept));
}

std::map<std::string, std::string> resolve(const Params&, const LayerFacts& layer) {
  require_projection(layer.hidden > 0);
  return {};
}

Index scratch_bytes(const Params& params, const LayerFacts& l, Index middle, Index /*kept*/) {
  const auto rows = static_cast<Index>(kRows);
  return snapkv_scores_bytes(params, l, middle) + 24 * middle +
         8 * (l.dv * l.hidden + rows * (l.hidden + l.dv));
}

}  // namespace

Method method_criticalkv() {
  MethodInfo info = snapkv_info(
      "criticalkv", {real_param("first_share", "0.5", 0, 1, "share of the kept tokens",
                                "tokens chosen by the score alone, rounded down; 1: snapkv"),
                     real_param("epsilon", "0.0001", 0, 1e6, "",
                                "added to the score before it is multiplied; larger lets the "
                                "values decide more")});
  info.family = Family::eviction;
  info.summary = "half by SnapKV's scores, the rest by score times the value's part of the output";
  info.source = "Feng et al., 2025, arXiv:2502.03805; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "the first half is rounded down to whole tokens, to none for B = 1; SnapKV's departures";
  info.grid = {"first_share=0.25,0.5,0.75;window=32,256;kernel=1,5"};
  info.reads_o_proj = true;
  info.resolve = resolve;
  info.scratch_bytes = scratch_bytes;
  return {info, compress};
}

}  // namespace kvbench
