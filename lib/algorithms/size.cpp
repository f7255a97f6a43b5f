#include "algorithms/size.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attention/top_k.hpp"
#include "core/error.hpp"

namespace kvbench {

std::vector<ParamSpec> size_params() {
  return {integer_param("tokens", "auto", 0, 1e12, "tokens",
                        "tokens kept of the middle, in place of a budget"),
          integer_param("T", "auto", 0, 62, "halvings",
                        "keep floor(m / 2^T) of the middle's m tokens, in place of a budget")};
}

std::vector<std::string> size_names() {
  return {"tokens", "T"};
}

Index tokens_to_keep(const Task& task, const Params& params, Index bytes_each, Index fixed_bytes) {
  const Index m = task.count();
  if (!params.is_auto("tokens") && !params.is_auto("T")) {
    throw InputError("parameters tokens and T both give a size; give one");
  }
  if (!params.is_auto("tokens")) {
    return std::min(m, params.integer("tokens"));
  }
  if (!params.is_auto("T")) {
    return m >> params.integer("T");
  }
  if (!task.budget_bytes) {
    throw InputError("no size: give a budget, tokens= or T=");
  }
  if (*task.budget_bytes < fixed_bytes) {
    throw Infeasible(fmt::format("needs {} bytes, budget {}", fixed_bytes, *task.budget_bytes),
                     fixed_bytes);
  }
  return std::min(m, (*task.budget_bytes - fixed_bytes) / bytes_each);
}

Share share_of(const Task& task, const Params& params, Survey (*survey)(const Task&, const Params&),
               std::vector<Share> (*share)(std::span<const Survey>, const Params&)) {
  if (task.share != nullptr) {
    return *task.share;
  }
  const Survey alone = survey(task, params);
  return share({&alone, 1}, params).front();
}

std::vector<Index> keep_top(std::span<const Index> tokens, std::span<const double> scores,
                            Index count, const DeviceHead* device) {
  std::vector<Index> out = top_places(scores, count, device);
  for (Index& i : out) {
    i = tokens[static_cast<std::size_t>(i)];
  }
  return out;
}

std::vector<Index> keep_last(std::span<const Index> tokens, Index count) {
  return {tokens.end() - count, tokens.end()};
}

Matrix take_rows(MatrixView m, std::span<const Index> tokens) {
  Matrix out(static_cast<Index>(tokens.size()), m.cols);
  for (Index i = 0; i < out.rows(); ++i) {
    std::copy_n(m.row(tokens[static_cast<std::size_t>(i)]), m.cols, out.row(i));
  }
  return out;
}

}  // namespace kvbench
