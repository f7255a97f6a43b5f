// KVReviver's one Compress of many tokens at once: what stays exactly, and what Vague makes of the
// rest.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithm 3, whose new tokens come in bulk.
//
// In: K, V of a task's tokens [m, .] and their accumulated attention [m]. Recent is the newest,
// Candidate the heaviest of the others (ties to the lowest position), the rest is Vague's:
//   sketch  every cell is the float64 sum of its tokens, ascending by position, rounded once; each
//           token is then rebuilt from it
//   none    dropped
//   mean    one token: mean key, mean value (float64, rounded once), their number as weight
// Time O(m (d + dv) rows), memory O(m (d + dv)). The selection and the mean use a device where the
// task has one; the sketch is filled and read on the CPU.
#pragma once

#include <span>

#include "algorithms/contract.hpp"
#include "algorithms/revive_plan.hpp"

namespace kvbench {

/// `scores` [task.count()]. Hash words are those of the task's stream `sketch`.
Compressed revive_batch(const Task& task, const ReviveOptions& options, const RevivePlan& plan,
                        std::span<const double> scores);

}  // namespace kvbench
