// Norms of values in the layer's output: |W_h v|.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

enum class OutputNorm { one, two };

/// [group][tokens]: norm of W_h v_i per query head; W_h [hidden, dv] are the head's columns of
/// task.o_proj, which must be set. float64. Time O(group t dv hidden), memory O(dv hidden).
std::vector<std::vector<double>> output_norms(const Task& task, std::span<const Index> tokens,
                                              OutputNorm norm);

/// [n]: mean over the group of |W_h v_i|_1. Computed once per head.
const std::vector<double>& mean_output_norms(const Task& task);

/// Throws InputError, with `method`, unless `there`.
void require_projection(const char* method, bool there);
/// For MethodInfo::resolve: the same for the layer's. Resolves nothing.
std::map<std::string, std::string> resolve_projection(const Params& params,
                                                      const LayerFacts& layer);

}  // namespace kvbench
