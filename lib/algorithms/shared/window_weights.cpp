#include "algorithms/shared/window_weights.hpp"

#include <algorithm>
#include <numeric>

#include "core/shared_work.hpp"

namespace kvbench {

std::vector<ParamSpec> window_params(std::string window, std::string kernel) {
  return {integer_param("window", std::move(window), 1, 1e9, "queries",
                        "how many of the last scoring queries score; larger looks at more"),
          integer_param("kernel", std::move(kernel), 1, 1e6, "tokens",
                        "width of the average pooling over neighbouring positions; odd; larger "
                        "keeps whole stretches of text, 1: no pooling")};
}

Range last_queries(const Task& task, Index count) {
  const Index first = std::max({task.scoring.begin, task.head.q_start(), task.scoring.end - count});
  return {first, task.scoring.end};
}

void each_window_block(const Task& task, const Params& params, const VisitWindow& visit) {
  const Range window = last_queries(task, params.integer("window"));
  share_work(task.head.group(), [&](Index g) {
    for (Index begin = window.begin; begin < window.end; begin += kWindowBlock) {
      std::vector<Index> positions(
          static_cast<std::size_t>(std::min(kWindowBlock, window.end - begin)));
      std::iota(positions.begin(), positions.end(), begin);
      visit(g, positions, task.backend.exact_probabilities(task.head, g, positions));
    }
  });
}

}  // namespace kvbench
