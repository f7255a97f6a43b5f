// H2O's eviction, one token at a time, over the tokens of a prefill task.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048, Algorithm 1.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/eviction_stream.hpp"

namespace kvbench {

/// Called once per eviction with what went and the tokens that stay, ascending.
using OnEviction = std::function<void(const Eviction& gone, std::span<const Index> kept)>;

/// Streams task.tokens, in order, through a cache of rules.kept tokens, and returns those that
/// stay. Each token joins; its own queries, where the trace holds them and they are scoring ones,
/// attend the sinks [0, task.sink), what is held, and itself (never another method's tokens, nor
/// the recent ones), and add their weights to the scores of what is held. Then, if more than
/// rules.kept are held, the lightest goes, of equally light ones the latest; the
/// rules.protected_recent latest, the newcomer among them, do not. rules.window plays no part, and
/// scores accumulate. Runs on the CPU whatever the task's device. Time O(group m (kept + sink) d),
/// memory O(kept d).
std::vector<Index> stream_evictions(const Task& task, const EvictionRules& rules,
                                    const OnEviction& on_eviction);

}  // namespace kvbench
