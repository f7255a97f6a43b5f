#include "algorithms/shared/snapkv_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

// Pools over tokens at positions within `half` of tokens[i].
std::vector<double> pooled(const std::vector<double>& scores, std::span<const Index> tokens,
                           Index half, bool largest) {
  std::vector<double> out(scores.size());
  std::size_t first = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    while (tokens[first] < tokens[i] - half) {
      ++first;
    }
    double peak = scores[i];
    double sum = 0.0;  // of differences from the centre, so that equal scores stay equal
    double count = 0.0;
    for (std::size_t j = first; j < scores.size() && tokens[j] <= tokens[i] + half; ++j) {
      peak = std::max(peak, scores[j]);
      sum += scores[j] - scores[i];
      count += 1.0;
    }
    out[i] = largest ? peak : std::max(0.0, scores[i] + sum / count);
  }
  return out;
}

}  // namespace

JobFacts snapkv_facts(const Params& params) {
  const Index kernel = params.integer("kernel");
  if (kernel % 2 == 0) {
    throw InputError(fmt::format("{}: parameter kernel: got {}, expected an odd integer",
                                 params.method(), kernel));
  }
  return {.scoring = {{.last = params.integer("window")}}};
}

MethodInfo snapkv_info(std::string name, const std::vector<ParamSpec>& own) {
  MethodInfo info;
  info.name = std::move(name);
  info.params =
      joined({size_params(),
              own,
              {integer_param("window", "32", 1, 1e9, "queries",
                             "observation window: how many of the last scoring queries score; "
                             "larger averages over more"),
               integer_param("kernel", "5", 1, 1e6, "tokens",
                             "width of the pooling over neighbouring positions; odd; larger keeps "
                             "whole stretches of text, 1: no pooling"),
               choice_param("pool", {"avg", "max"}, "pooling over the kernel, padding not counted"),
               reduce_param()}});
  info.holds = Holds::tokens;
  info.facts = snapkv_facts;
  info.copies = 1;
  info.matrix_bytes = ref_bytes;
  return info;
}

std::vector<double> snapkv_scores(const Task& task, const Params& params) {
  const Index kernel = params.integer("kernel");
  const Range window = {std::max(task.scoring.begin, task.scoring.end - params.integer("window")),
                        task.scoring.end};
  const bool largest = params.text("pool") == "max";
  const std::vector<std::string> ref = ref_sets(params);
  Index queries = window.size();
  if (!ref.empty()) {
    queries = 0;
    for (const Range& r : last_queries(extra_set(task, ref.front()), params.integer("window"))) {
      queries += r.size();
    }
  }
  std::vector<std::vector<double>> heads;
  for (const std::vector<double>& sums :
       ref.empty() ? task.scores->sums(window) : extra_sums(task, ref.front(), queries)) {
    std::vector<double> mean = gather_scores(sums, task.tokens);
    for (double& x : mean) {
      x /= static_cast<double>(std::max<Index>(1, queries));
    }
    heads.push_back(pooled(mean, task.tokens, kernel / 2, largest));
  }
  return reduce_group(heads, reduce_of(params));
}

}  // namespace kvbench
