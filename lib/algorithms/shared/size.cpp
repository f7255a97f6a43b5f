#include "algorithms/shared/size.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "attention/scores.hpp"
#include "core/error.hpp"

namespace kvbench {

std::vector<ParamSpec> size_params(const std::vector<ParamSpec>& own) {
  return joined(
      {{integer_param("tokens", "auto", 0, 1e12, "tokens",
                      "tokens kept of the middle, in place of a budget"),
        integer_param("T", "auto", 0, 62, "halvings",
                      "keep floor(m / 2^T) of the middle's m tokens, in place of a budget")},
       own});
}

Index given_budget(std::optional<Index> budget, std::string_view otherwise) {
  if (!budget) {
    throw InputError(fmt::format("got no size, expected a budget, or {}", otherwise));
  }
  return *budget;
}

void refuse_budget(Index needed, Index budget, std::string_view what, std::string_view of) {
  throw Infeasible(fmt::format("{} {} bytes{}, budget {}", what, needed, of, budget), needed);
}

Index tokens_to_keep(const Task& task, const Params& params, Index bytes_each, Index fixed_bytes) {
  const Index m = task.count();
  if (!params.is_auto("tokens")) {
    return std::min(m, params.integer("tokens"));
  }
  if (!params.is_auto("T")) {
    return m >> params.integer("T");
  }
  const Index budget = given_budget(task.budget_bytes, "tokens= or T=");
  if (budget < fixed_bytes) {
    refuse_budget(fixed_bytes, budget);
  }
  return std::min(m, (budget - fixed_bytes) / bytes_each);
}

Index pairs_to_keep(const Task& task, const Params& params) {
  return tokens_to_keep(task, params, task.head.pair_bytes());
}

Index own_pairs(const Task& task, const Params& params) {
  return task.share != nullptr ? task.share->tokens : pairs_to_keep(task, params);
}

Share share_of(const Task& task, const Params& params, Survey (*survey)(const Task&, const Params&),
               std::vector<Share> (*share)(std::span<const Survey>, const Params&)) {
  if (task.share != nullptr) {
    return *task.share;
  }
  Survey alone = survey(task, params);
  alone.kv_head = task.kv_head;
  alone.middle = task.count();
  alone.pair_bytes = task.head.pair_bytes();
  alone.budget_bytes = task.budget_bytes;
  return share({&alone, 1}, params).front();
}

std::vector<Index> keep_top(std::span<const Index> tokens, std::span<const double> scores,
                            Index count) {
  std::vector<Index> out = top_indices(scores, count);
  for (Index& i : out) {
    i = tokens[i];
  }
  return out;
}

std::vector<std::uint32_t> best_first(std::span<const double> scores, Index count) {
  std::vector<std::uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto better = [&](std::uint32_t a, std::uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  const auto cut = order.begin() + count;
  std::nth_element(order.begin(), cut == order.end() ? order.begin() : cut, order.end(), better);
  order.resize(count);
  order.shrink_to_fit();  // a group keeps many of them
  std::ranges::sort(order, better);
  return order;
}

Compressed hold(std::span<const Index> tokens) {
  Compressed out;
  out.held.tokens.assign(tokens.begin(), tokens.end());
  return out;
}

Compressed hold_top(const Task& task, const Params& params, std::span<const double> scores) {
  return hold(keep_top(task.tokens, scores, pairs_to_keep(task, params)));
}

Matrix copy_rows(MatrixView m, std::span<const Index> tokens) {
  Matrix out(static_cast<Index>(tokens.size()), m.cols);
  for (Index i = 0; i < out.rows(); ++i) {
    std::copy_n(m.row(tokens[i]), m.cols, out.row(i));
  }
  return out;
}

}  // namespace kvbench
