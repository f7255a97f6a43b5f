// What a trace's extra queries pay to the tokens of the prompt: for methods that score with a set
// of them (kvzip; ref=NAME), and the checks that a layer has one that may be used.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `ref`: whose queries score, `past` (the prompt's own) or a set's.
ParamSpec ref_param();
/// For MethodInfo::extra_sets: the set that `ref` names; none for past, and of methods without it.
std::vector<std::string> ref_sets(const Params& params);
/// For MethodInfo::resolve: the checks of require_extra on the set that `ref` names. Throws
/// InputError where it names one under the stream protocol.
std::map<std::string, std::string> resolve_ref(const Params& params, const LayerFacts& layer);

/// The layer's set `name`. Throws InputError, naming `method`, where the layer has none of that
/// name, or a segment does not say what the model had read (prefix), or had read evaluated tokens.
const ExtraSetInfo& require_extra(std::string_view method, const LayerFacts& layer,
                                  const std::string& name);
/// The same of scores.
const ScoresInfo& require_scores(std::string_view method, const LayerFacts& layer,
                                 const std::string& name);

/// The task's set of that name. Throws std::logic_error where it has none: see Task::extra.
const ExtraSet& extra_set(const Task& task, const std::string& name);

/// The softmax weights of one query of head `g` of the group, row `j` of its segment: w [tokens].
using VisitWeights = std::function<void(Index g, Index j, std::span<const double> w)>;

/// Queries `queries` of a segment, of every query head of the group: their softmax runs over
/// `tokens` of the head and the segment's own keys up to the query itself, at the positions where
/// they are rotated. float64, the order of every sum fixed. Visits heads one after another, queries
/// ascending. Time O(group m (t + m) d), memory extra_weights_bytes.
void each_extra_weight(const KvHead& head, const ExtraSegment& segment,
                       std::span<const Index> tokens, Range queries, const VisitWeights& visit);
Index extra_weights_bytes(Index d, Index tokens, Index queries);

/// [group][n]: sums of the softmax weights of the set's last `count` queries (its segments one
/// after another), each over the tokens [0, prefix) of its segment and the segment's own keys up to
/// itself; 0 for tokens from prefix on. Computed once for a head (ScoreBook::cached).
const std::vector<std::vector<double>>& extra_sums(const Task& task, const std::string& set,
                                                   Index count);
/// Bytes that this holds beside its result, for the set that `ref` names.
Index extra_sums_bytes(const Params& params, const LayerFacts& layer);

/// Of the last `count` queries of a set: those of each segment.
std::vector<Range> last_queries(const ExtraSet& set, Index count);

}  // namespace kvbench
