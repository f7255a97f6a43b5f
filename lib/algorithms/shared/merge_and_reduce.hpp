// MergeAndReduce: a stream kept as levels of at most t tokens, level l with weight 2^l. The caller
// supplies the halving.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithm 3.
//
// C^0 takes arrivals. After every t of them it is halved into C^1 and emptied; if 2^i divides the
// number of batches, C^i is halved into C^{i+1}. Between arrivals C^i (0 < i < T) is empty or holds
// t/2 tokens. Every halved block has exactly t tokens, so for even t nothing is rounded and the
// level weights sum to the arrivals.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Identifies a halved block: current batch size, its level, and its number on that level from 0.
/// Block b of level l stands for arrivals [b t 2^l, (b + 1) t 2^l). Unique within a stream.
struct BlockId {
  Index t = 0;
  Index level = 0;
  Index number = 0;
};

/// Returns exactly half of a block of even size: the survivors, in order.
using HalveBlock =
    std::function<std::vector<Index>(std::span<const Index> block, const BlockId& id)>;

class MergeAndReduce {
 public:
  static constexpr Index kUnlimited = std::numeric_limits<Index>::max();

  /// `t`: batch size, even, >= 2. `levels`: T >= 0, the level that is never halved and grows
  /// without bound; kUnlimited: as many as needed, each of at most t tokens. Throws
  /// std::logic_error otherwise.
  explicit MergeAndReduce(Index t, Index levels = kUnlimited);

  /// Adds a token. Holds at most size() + 1 tokens meanwhile.
  void append(Index token, const HalveBlock& halve);

  /// Halves the batch size. The levels then have the shape of a stream with t/2 from the start.
  /// Never holds more than before. Requires t divisible by 4 and T unlimited, otherwise throws
  /// std::logic_error.
  void lower(const HalveBlock& halve);

  Index t() const { return t_; }
  Index arrivals() const { return arrivals_; }
  Index size() const;
  /// C^0, C^1, ..., each in order of arrival. Weight of C^l: 2^l.
  std::span<const std::vector<Index>> levels() const { return levels_; }
  /// Exact.
  double weight() const;

 private:
  void reduce(std::span<const Index> block, Index level, Index number, const HalveBlock& halve);

  Index t_;
  Index top_;
  Index arrivals_ = 0;
  std::vector<std::vector<Index>> levels_;
};

}  // namespace kvbench
