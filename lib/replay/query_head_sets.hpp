// `store=query-head`: a cache of its own for each query head of the group, as public code that
// repeats keys and values over query heads stores them (SnapKV, HeadKV). The budget is the KV
// head's, so that each query head has an equal part of it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/grid.hpp"
#include "metrics/memory.hpp"

namespace kvbench {

/// Compresses the task once per query head, each with a KV head whose only query head it is and
/// with floor(budget / group) bytes. A method that draws random numbers draws others for each.
/// Runs on the CPU. `true_mass(g)`: exact attention mass [n] of query head g, for methods that see
/// it. Throws Infeasible with the bytes that all query heads need.
std::vector<Compressed> compress_by_query_head(
    const Variant& variant, const Task& task,
    const std::function<std::span<const double>(Index)>& true_mass);

/// Memory of a row whose query head is all[own]: bytes are those of all query heads, `tokens_kept`
/// is its own. `middle`, `seen`: as memory_figures().
MemoryFigures by_query_head(const std::vector<MemoryFigures>& all, Index own, const KvHead& head,
                            Index middle, std::optional<Index> seen);

}  // namespace kvbench
