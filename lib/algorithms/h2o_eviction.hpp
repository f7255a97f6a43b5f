// H2O's greedy eviction in a stream, shared by h2o and by cam, which merges what it evicts.
// [1] Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
//     Models", NeurIPS 2023, arXiv:2306.14048, Algorithm 1.
//
// At each step the newcomer joins, the queries attend to everything held (the recent window
// included) and add their weights to the scores, and if the tokens outside the window are then more
// than B the lightest of them goes, the most recent B - floor(heavy_ratio B) excepted; of equally
// light ones the latest. Scores go with their token; those of the window are kept for when it
// leaves, and count: 4 bytes for each token held, window and all.
#pragma once

#include <algorithm>
#include <iterator>

#include "algorithms/attended_cache.hpp"
#include "algorithms/scoring.hpp"
#include "algorithms/stream_tokens.hpp"

namespace kvbench {

class H2oEviction {
 public:
  static constexpr Index kScoreBytes = 4;

  /// Errors: as stream_tokens_to_keep.
  H2oEviction(const StreamTask& task, const Params& params)
      : window_(std::min(task.recent, task.head.n())),
        kept_(stream_tokens_to_keep(task, params, task.head.pair_bytes() + kScoreBytes,
                                    kScoreBytes * window_)),
        recent_(kept_ - floor_share(params.real("heavy_ratio"), kept_)),
        cache_(task.head, kept_ + window_ + 1, reduce_of(params)) {}

  /// One step of the stream; the token that is evicted, or -1.
  Index step(Index j, Index leaving) {
    cache_.add(j);
    outside_ += leaving >= 0 ? 1 : 0;
    cache_.attend(j);
    if (outside_ <= kept_) {
      return -1;
    }
    // Heavy candidates: the oldest outside_ - recent_ of those held.
    auto lightest = cache_.slots().begin();
    auto it = lightest;
    for (Index i = 0; i < outside_ - recent_; ++i, ++it) {
      if (cache_.score(it->second) <= cache_.score(lightest->second)) {
        lightest = it;
      }
    }
    return evict(lightest->first);
  }

  /// Tokens held outside the window, ascending.
  std::vector<Index> tokens() const {
    std::vector<Index> out;
    for (const auto& [token, slot] : cache_.slots()) {
      if (static_cast<Index>(out.size()) < outside_) {
        out.push_back(token);
      }
    }
    return out;
  }

  Index aux_bytes() const { return kScoreBytes * cache_.size(); }

  /// Accumulated score of a token that is held.
  double score(Index token) const { return cache_.score(cache_.slots().at(token)); }
  /// Accumulated score of the token evicted last.
  double evicted_score() const { return evicted_score_; }

 private:
  Index evict(Index token) {
    evicted_score_ = score(token);
    cache_.remove(token);
    --outside_;
    return token;
  }

  Index window_;
  Index kept_;
  Index recent_;
  AttendedCache cache_;
  Index outside_ = 0;
  double evicted_score_ = 0.0;
};

}  // namespace kvbench
