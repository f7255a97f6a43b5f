// Attention from a trace's extra queries to the prompt (kvzip; ref=NAME).
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `ref`: queries that score, `past` (the prompt's own) or a set's name.
ParamSpec ref_param();
/// For Scoring::sets: the set named by `ref`, or none.
std::vector<std::string> ref_sets(const Params& params);
/// For MethodInfo::matrix_bytes: the attention of that set.
Index ref_bytes(const Params& params, const LayerFacts& layer, Index kept);
/// For MethodInfo::resolve: checks the set named by `ref` as require_extra. Throws InputError also
/// under the stream protocol.
std::map<std::string, std::string> resolve_ref(const Params& params, const LayerFacts& layer);

/// Returns the layer's set. Throws InputError, with `method`, if there is none, or a segment has no
/// prefix or one beyond the prompt.
const ExtraSetInfo& require_extra(std::string_view method, const LayerFacts& layer,
                                  const std::string& name);
/// The same for scores.
const ScoresInfo& require_scores(std::string_view method, const LayerFacts& layer,
                                 const std::string& name);

/// Returns the task's set. Throws std::logic_error if it is missing (see Task::extra).
const ExtraSet& extra_set(const Task& task, const std::string& name);

/// Receives the softmax weights w [tokens] of row `j` of a segment, for query head `g` of the
/// group.
using VisitWeights = std::function<void(Index g, Index j, std::span<const double> w)>;

/// Visits softmax weights of rows `queries` of a segment, by query head, then row. A softmax runs
/// over `tokens` of the head and the segment's keys up to the query. float64, fixed order of sums.
/// Time O(group m (t + m) d), memory O((t + m) d).
void each_extra_weight(const KvHead& head, const ExtraSegment& segment,
                       std::span<const Index> tokens, Range queries, const VisitWeights& visit);

/// [group][n]: summed softmax weights of the set's last `count` queries, each over tokens [0,
/// prefix) and its segment's keys up to itself; 0 from prefix on. Computed once per head
/// (ScoreBook::cached).
const std::vector<std::vector<double>>& extra_sums(const Task& task, const std::string& set,
                                                   Index count);

/// The last `count` queries of a set, as a range in each segment.
std::vector<Range> last_queries(const ExtraSet& set, Index count);

}  // namespace kvbench
