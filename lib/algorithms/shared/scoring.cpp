#include "algorithms/shared/scoring.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/size.hpp"
#include "core/math.hpp"

namespace kvbench {

ParamSpec reduce_param() {
  return choice_param("reduce", {"mean", "max", "sum"},
                      "how scores of the query heads that share a KV head become one per token");
}

Reduce reduce_of(const Params& params) {
  const std::string& text = params.text("reduce");
  return text == "mean" ? Reduce::mean : text == "max" ? Reduce::max : Reduce::sum;
}

std::vector<double> gather_scores(std::span<const double> all, std::span<const Index> tokens) {
  std::vector<double> out;
  out.reserve(tokens.size());
  for (const Index i : tokens) {
    out.push_back(all[i]);
  }
  return out;
}

std::vector<double> accumulated_scores(const Task& task, const Params& params) {
  const std::vector<std::string> ref = ref_sets(params);
  return reduce_group(ref.empty()
                          ? task.scores->sums(task.scoring)
                          : extra_sums(task, ref.front(), std::numeric_limits<Index>::max()),
                      reduce_of(params));
}

ScoreBook::Scores whole_scores(const Task& task, const std::string& key,
                               const std::function<ScoreBook::Scores()>& compute) {
  return task.scores != nullptr && task.whole ? task.scores->cached(key, compute) : compute();
}

double log_reduced(const std::vector<std::vector<double>>& logs, std::size_t i, Reduce reduce) {
  double largest = logs.front()[i];
  for (const std::vector<double>& head : logs) {
    largest = std::max(largest, head[i]);
  }
  if (reduce == Reduce::max || logs.size() == 1) {
    return largest;
  }
  double sum = 0.0;
  for (const std::vector<double>& head : logs) {
    sum += exp_shared(head[i] - largest);
  }
  const double count = reduce == Reduce::mean ? static_cast<double>(logs.size()) : 1.0;
  return largest + std::log(sum / count);
}

std::vector<double> pooled_over(std::span<const double> values, std::span<const Index> tokens,
                                Index kernel) {
  std::vector<double> out;
  std::size_t first = 0;
  for (const Index token : tokens) {
    while (tokens[first] < token - kernel / 2) {
      ++first;
    }
    double sum = 0.0;
    for (std::size_t j = first; j < values.size() && tokens[j] <= token + kernel / 2; ++j) {
      sum += values[j];
    }
    out.push_back(sum / static_cast<double>(kernel));
  }
  return out;
}

Index floor_share(double ratio, Index count) {
  const auto whole = static_cast<double>(count);
  const double nearly = std::max(1e-9, 4e-16 * whole);  // above the product's rounding, below 1
  return std::min(count, static_cast<Index>(std::floor(ratio * whole + nearly)));
}

}  // namespace kvbench
