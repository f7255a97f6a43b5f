// R-KV's joint score of a cache's tokens: attention from the last queries against redundancy of the
// keys.
// [1] Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", 2025,
//     arXiv:2505.24133, section 3.
// [2] Its public code, github.com/Zefan-Cai/R-KV d15c976, rkv/compression/r1_kv.py and
// rkv/utils.py.
#pragma once

#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct RkvRules {
  double lambda = 0.07;       ///< weight of importance; redundancy has 1 - lambda
  double threshold = 0.5;     ///< keys of a larger cosine are similar
  Index kernel = 7;           ///< of the pooling, odd
  bool largest_logit = true;  ///< of a group's query heads the largest logit; false: their mean
};

/// out[i] = lambda I_i - (1 - lambda) R_i of own[i], within [-1, 1]; own tokens that the queries
/// stand at or before (positions >= queries.begin) have more than 1, the newest most.
///   I: the group's logits s<k,q> become one per query and token (largest or mean); softmax over
///   the
///      cache's tokens before queries.begin; mean over the queries; then the largest of the own
///      tokens within kernel / 2 places, in order of position. Without queries, or tokens before
///      them: 0.
///   R: cosines of all keys of the cache, each norm + 1e-8 as in [2]; each row's own entry is 0,
///   and
///      so is that of its last token with a cosine above the threshold, so that of similar tokens
///      the newest stays; mean of the rows; softmax over the cache.
/// `cache`: positions held, strictly ascending; `own`, part of it: those that may go. Queries at
/// all positions of `queries` must be in the head. float64, one order of sums. Time O(group
/// |queries| |cache| d) and, where few keys are similar, O(|cache|^2 d).
std::vector<double> rkv_scores(const KvHead& head, std::span<const Index> cache,
                               std::span<const Index> own, Range queries, const RkvRules& rules);

/// Bytes that this holds for a cache of so many tokens of width d, and its result.
Index rkv_scores_bytes(Index cache, Index own, Index d);

}  // namespace kvbench
