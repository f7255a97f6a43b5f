// Shared by streams of token-keeping methods: their tokens, sizes, and caches of the first, last or
// sampled tokens.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>

#include "algorithms/shared/size.hpp"

namespace kvbench {

/// The positions that leave the recent window by the end of the stream, without sinks: what a
/// method may keep. sink, recent >= 0.
inline Range stream_middle(const StreamTask& task) {
  const Index n = task.head.n();
  const Index sink = std::min(task.sink, n);
  return {sink, std::max(sink, n - std::min(task.recent, n))};
}

inline std::vector<Index> stream_tokens(const StreamTask& task) {
  const Range middle = stream_middle(task);
  std::vector<Index> out(middle.size());
  std::iota(out.begin(), out.end(), middle.begin);
  return out;
}

/// tokens_to_keep with m = size of stream_middle.
inline Index stream_tokens_to_keep(const StreamTask& task, const Params& params, Index bytes_each,
                                   Index fixed_bytes = 0) {
  const std::vector<Index> all = stream_tokens(task);
  return tokens_to_keep({task.head, all, task.budget_bytes, {}, {}, task.rng}, params, bytes_each,
                        fixed_bytes);
}

/// A cache that only needs the tokens that leave the window.
class TokenStream : public StreamCache {
 public:
  void append(Index /*j*/, Index leaving) final {
    if (leaving >= 0) {
      take(leaving);
    }
  }

 private:
  virtual void take(Index token) = 0;
};

class LastTokens {
 public:
  explicit LastTokens(Index capacity) : capacity_(capacity) {}

  /// Adds `token`; returns the token that drops out (`token` itself if capacity is 0), or -1.
  Index push(Index token) {
    tokens_.push_back(token);
    if (static_cast<Index>(tokens_.size()) <= capacity_) {
      return -1;
    }
    const Index out = tokens_.front();
    tokens_.pop_front();
    return out;
  }

  std::vector<Index> tokens() const { return {tokens_.begin(), tokens_.end()}; }

 private:
  Index capacity_;
  std::deque<Index> tokens_;
};

/// The first min(`first`, `kept`) tokens of a stream, and the last, `kept` in all.
class FirstAndLast final : public TokenStream {
 public:
  FirstAndLast(Index first, Index kept)
      : first_count_(std::min(first, kept)), last_(kept - first_count_) {}

  Compressed view() const override {
    Compressed out = hold(first_);
    append_all(out.held.tokens, last_.tokens());
    return out;
  }

 private:
  void take(Index token) override {
    if (static_cast<Index>(first_.size()) < first_count_) {
      first_.push_back(token);
    } else {
      last_.push(token);
    }
  }

  Index first_count_;
  std::vector<Index> first_;
  LastTokens last_;
};

/// A uniform sample of `capacity` tokens at any time (Vitter, "Random sampling with a reservoir",
/// ACM TOMS 11(1), 1985, algorithm R). One draw per push beyond capacity; none if capacity is 0.
class Reservoir {
 public:
  Reservoir(Index capacity, RngStream stream) : capacity_(capacity), stream_(stream) {}

  void push(Index token) {
    ++arrivals_;
    if (arrivals_ <= capacity_) {
      tokens_.push_back(token);
    } else if (capacity_ > 0) {
      const std::uint64_t place = stream_.next_below(static_cast<std::uint64_t>(arrivals_));
      if (place < tokens_.size()) {
        tokens_[place] = token;
      }
    }
  }

  Index arrivals() const { return arrivals_; }
  std::vector<Index> sorted() const {
    std::vector<Index> out = tokens_;
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  Index capacity_;
  RngStream stream_;
  Index arrivals_ = 0;
  std::vector<Index> tokens_;  // by slot
};

}  // namespace kvbench
