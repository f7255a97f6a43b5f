// What the streams of token-keeping methods share: which tokens are theirs, how many of them they
// keep, and the first and last that left.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"

namespace kvbench {

/// The tokens that leave the recent window by the stream's end and are no sinks: a method's own.
/// sink, recent >= 0, of any size.
inline Range stream_middle(const StreamTask& task) {
  const Index n = task.head.n();
  const Index sink = std::min(task.sink, n);
  return {sink, std::max(sink, n - std::min(task.recent, n))};
}

/// Tokens of the recent window at its largest, sinks not among them.
inline Index stream_window(const StreamTask& task) {
  return task.head.n() - stream_middle(task).end;
}

/// tokens_to_keep for a stream: m is the size of stream_middle. Errors: as tokens_to_keep.
inline Index stream_tokens_to_keep(const StreamTask& task, const Params& params, Index bytes_each,
                                   Index fixed_bytes = 0) {
  const Range middle = stream_middle(task);
  std::vector<Index> all(static_cast<std::size_t>(middle.size()));
  std::iota(all.begin(), all.end(), middle.begin);
  return tokens_to_keep({task.head, all, task.budget_bytes, {}, {}, task.rng}, params, bytes_each,
                        fixed_bytes);
}

/// The last `capacity` tokens; a ring whose place follows from the position.
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

  const std::deque<Index>& tokens() const { return tokens_; }

 private:
  Index capacity_;
  std::deque<Index> tokens_;
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
        tokens_[static_cast<std::size_t>(place)] = token;
      }
    }
  }

  Index arrivals() const { return arrivals_; }
  /// By slot, in no order of positions.
  const std::vector<Index>& tokens() const { return tokens_; }

 private:
  Index capacity_;
  RngStream stream_;
  Index arrivals_ = 0;
  std::vector<Index> tokens_;
};

}  // namespace kvbench
