// R-KV's joint score of cached tokens: attention from the last queries against redundancy of keys.
// [1] Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models", 2025,
//     arXiv:2505.24133, section 3.
// [2] Its public code, github.com/Zefan-Cai/R-KV d15c976, rkv/compression/r1_kv.py and
//     rkv/utils.py.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/scores.hpp"
#include "core/types.hpp"

namespace kvbench {

struct RkvRules {
  double lambda = 0.07;       ///< weight of importance; redundancy has 1 - lambda
  double threshold = 0.5;     ///< keys with a larger cosine are similar
  Index kernel = 7;           ///< pooling width, odd
  bool largest_logit = true;  ///< largest logit over a group's query heads; false: mean
};

/// out[i] = lambda I_i - (1 - lambda) R_i of own[i], in [-1, 1]. Own tokens at positions >=
/// queries.begin have more than 1, newer ones more.
///   I: logits s<k,q> are reduced over the group (largest or mean); softmax over the cache's tokens
///      before queries.begin; mean over the queries; largest within kernel / 2 places among own
///      tokens in order of position. 0 without queries or tokens before them.
///   R: cosines of all cached keys, each norm + 1e-8 as in [2]. Row i loses its own entry and that
///      of its last token with a cosine above the threshold, so the newest of similar tokens is
///      kept; mean of the rows; softmax over the cache.
/// `cache`: held positions, strictly ascending; `own`: the evictable part of it. All queries must
/// be in the head. float64, fixed order of sums. Time O(group |queries| |cache| d), plus
/// O(|cache|^2 d) if few keys are similar. `book` (may be null): the head's, keeps I before pooling
/// and R; `cache` must then be [0, its size).
std::vector<double> rkv_scores(const KvHead& head, std::span<const Index> cache,
                               std::span<const Index> own, Range queries, const RkvRules& rules,
                               const ScoreBook* book = nullptr);

/// Keys in the book of rules and of a window of queries.
std::vector<std::string> rkv_book_keys(Index window, const RkvRules& rules);

}  // namespace kvbench
