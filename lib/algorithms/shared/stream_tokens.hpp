// What the streams of token-keeping methods share: which tokens are theirs, how many of them they
// keep, and the first, the last or a sample of those that left the recent window.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "algorithms/shared/size.hpp"

namespace kvbench {

/// The tokens that leave the recent window by the stream's end and are no sinks: a method's own.
/// sink, recent >= 0, of any size.
inline Range stream_middle(const StreamTask& task) {
  const Index n = task.head.n();
  const Index sink = std::min(task.sink, n);
  return {sink, std::max(sink, n - std::min(task.recent, n))};
}

/// Their positions.
inline std::vector<Index> stream_tokens(const StreamTask& task) {
  const Range middle = stream_middle(task);
  std::vector<Index> out(middle.size());
  std::iota(out.begin(), out.end(), middle.begin);
  return out;
}

/// tokens_to_keep for a stream: m is the size of stream_middle. Errors: as tokens_to_keep.
inline Index stream_tokens_to_keep(const StreamTask& task, const Params& params, Index bytes_each,
                                   Index fixed_bytes = 0) {
  const std::vector<Index> all = stream_tokens(task);
  return tokens_to_keep({task.head, all, task.budget_bytes, {}, {}, task.rng}, params, bytes_each,
                        fixed_bytes);
}

/// A cache that asks for nothing but the tokens that become its own, one after another.
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

/// The last `capacity` tokens.
class LastTokens {
 public:
  explicit LastTokens(Index capacity) : capacity_(capacity) {}

  /// Takes `token` in; returns the one that falls out (`token` itself where capacity is 0), or -1.
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

/// The first tokens of a stream and the last, `kept` in all, of which at most `first` the first.
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

/// `capacity` of all tokens pushed, every subset equally likely at any moment (Vitter, "Random
/// sampling with a reservoir", ACM TOMS 11(1), 1985, algorithm R). One draw per push beyond
/// capacity, none where capacity is 0.
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
