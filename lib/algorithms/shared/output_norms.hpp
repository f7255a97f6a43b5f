// How large a token's value is in the layer's output: |W_h v|.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

enum class OutputNorm { one, two };

/// [group][tokens]: the norm of W_h v_i for each query head of the group; W_h [hidden, dv] the
/// head's columns of task.o_proj, which is there. float64. Time O(group t dv hidden), memory
/// output_norms_bytes beside the result.
std::vector<std::vector<double>> output_norms(const Task& task, std::span<const Index> tokens,
                                              OutputNorm norm);
Index output_norms_bytes(Index hidden, Index dv);

/// Throws InputError, naming the method, unless `there`.
void require_projection(const char* method, bool there);

}  // namespace kvbench
