// pyramidkv: SnapKV's scores, budgets that fall linearly from the first layer to the last.
// [1] Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information
//     Funneling", 2024, arXiv:2406.02069, section 4.
// For L replayed layers with B tokens each: from max = min(2B - B/beta, |M|) down to 2B - max, per
// KV head, rounded by largest remainder (ties to the lowest layer), so that the sum is L B exactly.
// If layers differ in B or |M|, B is the mean, and the earliest layers with space take what a layer
// cannot hold. A head without a share keeps B. Time O(m kernel) beside the scores.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "algorithms/shared/size.hpp"
#include "algorithms/shared/snapkv_scores.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

Survey survey(const Task& task, const Params& params) {
  return {pairs_to_keep(task, params)};
}

// Tokens of one KV head's layers.
std::vector<Index> linear(const std::vector<const Survey*>& layers, double beta) {
  const std::size_t count = layers.size();
  Index total = 0;
  Index widest = 0;  // the largest middle
  for (const Survey* s : layers) {
    total += s->tokens;
    widest = std::max(widest, s->middle);
  }
  const double mean = static_cast<double>(total) / static_cast<double>(count);
  const double first =
      count == 1 ? mean : std::min(2.0 * mean - mean / beta, static_cast<double>(widest));
  const double last = 2.0 * mean - first;
  // Fractions are compared in steps of 1e-9, so that rounding breaks no tie. A whole number that
  // came out just below itself has the largest fraction and is rounded up first.
  const double step = 1e-9;
  std::vector<Index> out(count);
  std::vector<std::pair<double, std::size_t>> fractions;
  Index left = total;
  for (std::size_t l = 0; l < count; ++l) {
    const double along = count == 1 ? 0.0 : static_cast<double>(l) / static_cast<double>(count - 1);
    const double exact = first + (last - first) * along;
    out[l] = static_cast<Index>(std::floor(exact));
    left -= out[l];
    fractions.emplace_back(-std::round((exact - static_cast<double>(out[l])) / step), l);
  }
  std::sort(fractions.begin(), fractions.end());  // negative: the largest first, then the layer
  for (std::size_t i = 0; left > 0; i = (i + 1) % count, --left) {
    out[fractions[i].second] += 1;
  }
  Index surplus = 0;
  for (std::size_t l = 0; l < count; ++l) {
    surplus += std::max<Index>(0, out[l] - layers[l]->middle);
    out[l] = std::min(out[l], layers[l]->middle);
  }
  for (std::size_t l = 0; l < count && surplus > 0; ++l) {
    const Index more = std::min(surplus, layers[l]->middle - out[l]);
    out[l] += more;
    surplus -= more;
  }
  return out;
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  std::map<Index, std::vector<std::size_t>> by_head;  // surveys come by layer
  for (std::size_t i = 0; i < surveys.size(); ++i) {
    by_head[surveys[i].kv_head].push_back(i);
    if (surveys[i].pair_bytes != surveys.front().pair_bytes) {
      throw InputError("pyramidkv: layers share tokens, so they need heads of one shape and type");
    }
  }
  std::vector<Share> out(surveys.size());
  for (const auto& [head, members] : by_head) {
    std::vector<const Survey*> layers;
    for (const std::size_t i : members) {
      layers.push_back(&surveys[i]);
    }
    const std::vector<Index> tokens = linear(layers, params.real("beta"));
    for (std::size_t l = 0; l < members.size(); ++l) {
      out[members[l]].tokens = tokens[l];
    }
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Index kept = task.share != nullptr ? task.share->tokens : pairs_to_keep(task, params);
  return hold(keep_top(task.tokens, snapkv_scores(task, params), kept));
}

}  // namespace

Method method_pyramidkv() {
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

}  // namespace kvbench
