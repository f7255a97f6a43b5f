// MergeAndReduce: a stream kept as levels of at most t tokens, level l with weight 2^l. The caller
// supplies the halving.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithm 3.
//
// C^0 takes arrivals and is halved into C^1 after every t; if 2^i divides the number of batches,
// C^i is halved into C^{i+1}. Between arrivals C^i (0 < i < T) is empty or holds t/2 tokens. Every
// halved block has exactly t tokens, so level weights sum to the arrivals for even t.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// A halved block: batch size, level, and number on that level from 0. Stands for arrivals [number
/// t 2^level, (number + 1) t 2^level).
struct BlockId {
  Index t = 0;
  Index level = 0;
  Index number = 0;
};

/// Returns the survivors in order, exactly half of the block.
using HalveBlock =
    std::function<std::vector<Index>(std::span<const Index> block, const BlockId& id)>;

class MergeAndReduce {
 public:
  static constexpr Index kUnlimited = std::numeric_limits<Index>::max();

  /// `t`: batch size, even, >= 2. `levels`: T >= 0, the level that is never halved; kUnlimited: as
  /// many as needed, each of at most t tokens. Throws std::logic_error otherwise.
  explicit MergeAndReduce(Index t, Index levels = kUnlimited);

  /// Adds a token. Holds at most size() + 1 tokens meanwhile.
  void append(Index token, const HalveBlock& halve);

  /// Halves the batch size; levels then are as with t/2 from the start. Never holds more than
  /// before. Throws std::logic_error unless t is divisible by 4 and T unlimited.
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
