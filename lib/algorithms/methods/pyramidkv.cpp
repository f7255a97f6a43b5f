// pyramidkv: SnapKV's scores, budgets that fall linearly from the first layer to the last.
// [1] Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information
//     Funneling", 2024, arXiv:2406.02069, section 4.
// For L replayed layers with B tokens each: from max = min(2B - B/beta, |M|) down to 2B - max, per
// KV head, rounded by largest remainder (ties to the lowest layer), so that the sum is L B exactly.
// If layers differ in B or |M|, B is the mean, and the earliest layers with space take what a layer
// cannot hold. A head without a share keeps B. Time O(m kernel) beside the scores.
#include <algorithm>

#include "algorithms/shared/layer_budgets.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"

namespace kvbench::method_pyramidkv {
namespace {

Survey survey(const Task& task, const Params& params) {
  return {pairs_to_keep(task, params)};
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  const double beta = params.real("beta");
  return layer_shares(
      surveys, "pyramidkv", [beta](std::span<const Survey* const> layers, LayerTotals totals) {
        const std::size_t count = layers.size();
        const double mean = static_cast<double>(totals.tokens) / static_cast<double>(count);
        const double first =
            count == 1 ? mean
                       : std::min(2.0 * mean - mean / beta, static_cast<double>(totals.widest));
        const double last = 2.0 * mean - first;
        std::vector<double> out;
        for (std::size_t l = 0; l < count; ++l) {
          const double along =
              count == 1 ? 0.0 : static_cast<double>(l) / static_cast<double>(count - 1);
          out.push_back(first + (last - first) * along);
        }
        return out;
      });
}

Compressed compress(const Task& task, const Params& params) {
  return hold(keep_top(task.tokens, snapkv_scores(task, params), own_pairs(task, params)));
}

}  // namespace

Method make() {
  MethodInfo info = snapkv_info(
      "pyramidkv", {real_param("beta", "20", 1, 1e9, "",
                               "the last layer's budget is B / beta; 1: equal budgets")});
  info.family = Family::eviction;
  info.summary = "SnapKV's scores, budgets falling linearly over the layers";
  info.source = "Cai et al., 2024, arXiv:2406.02069, section 4";
  info.departures =
      "layers are the replayed ones; the observation window is not part of the budget; SnapKV's "
      "departures";
  info.grid = {"beta=1,5,20;window=32,256;kernel=1,5"};
  info.facts = [](const Params& p) {
    JobFacts out = snapkv_facts(p);
    out.scope = Scope::layers;
    return out;
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_pyramidkv
