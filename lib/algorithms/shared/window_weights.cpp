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

void each_window_block(const Task& task, const Params& params, const VisitWindow& visit) {
  const Index first = std::max(
      {task.scoring.begin, task.head.q_start(), task.scoring.end - params.integer("window")});
  share_work(task.head.group(), [&](Index g) {
    for (Index begin = first; begin < task.scoring.end; begin += kWindowBlock) {
      std::vector<Index> positions(
          static_cast<std::size_t>(std::min(kWindowBlock, task.scoring.end - begin)));
      std::iota(positions.begin(), positions.end(), begin);
      visit(g, positions, task.backend.exact_probabilities(task.head, g, positions));
    }
  });
}

std::vector<double> pooled_with_zeros(std::span<const double> x, std::span<const Index> tokens,
                                      Index kernel) {
  std::vector<double> out(x.size());
  std::size_t first = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    while (tokens[first] < tokens[i] - kernel / 2) {
      ++first;
    }
    double sum = 0.0;
    for (std::size_t j = first; j < x.size() && tokens[j] <= tokens[i] + kernel / 2; ++j) {
      sum += x[j];
    }
    out[i] = sum / static_cast<double>(kernel);
  }
  return out;
}

}  // namespace kvbench
