// Bounds of the logits in pages of keys, by quest and rocketkv.
// [1] Behnam et al., "RocketKV: Accelerating Long-Context LLM Inference via Two-Stage KV Cache
//     Compression", ICML 2025, arXiv:2502.14051, section 3.4.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// [pages, 2 d]: maxima, then minima, of each channel over pages of `page` of the keys `tokens`, in
/// order; the last page may be shorter.
Matrix page_extremes(MatrixView keys, std::span<const Index> tokens, Index page);

/// Pages of some tokens, and how many channels of a query count.
struct GroupPages {
  Index tokens = 0;
  Index page = 1;
  Index channels = 1;

  Index pages() const { return (tokens + page - 1) / page; }
};

/// Calls use(scores) for each of the last `queries` queries, in order: the log of the mean over the
/// group of softmax(x / t), where each page counts once for each of its tokens. Of a query head, x
/// [pages] is the sum over the channels with the largest |q| summed over the group of q_c max_c
/// where the group's sum of q_c is positive, of q_c min_c elsewhere; t^2 the share of these
/// channels in the head's |q|. `extremes`: of page_extremes. Scaled queries; products in the head's
/// precision, the rest in float64.
void visit_group_scores(const KvHead& head, Index queries, const Matrix& extremes,
                        const GroupPages& pages,
                        const std::function<void(const std::vector<double>& scores)>& use);

}  // namespace kvbench
