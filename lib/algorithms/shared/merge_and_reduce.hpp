// MergeAndReduce: a stream of tokens kept as levels of at most t tokens, level l standing for 2^l
// tokens each. What halves a block is handed in.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithm 3.
//
// C^0 takes arrivals one by one. After every t of them it is halved into C^1 and emptied; where the
// number of batches so far is divisible by 2^i, so is C^i into C^{i+1}. Between arrivals C^i
// (0 < i < T) is empty or holds t/2 tokens, and every block that is halved has exactly t: with t
// even nothing is ever rounded and the level weights add up to the arrivals.
#pragma once

#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Which block is being halved: the batch size in force, the level that it leaves, and its number
/// among the blocks of that level, from 0. Block b of level l stands for arrivals
/// [b t 2^l, (b + 1) t 2^l). No two blocks of one stream have the same.
struct BlockId {
  Index t = 0;
  Index level = 0;
  Index number = 0;
};

/// Halves a block of even size: the tokens that survive, in order, exactly half of them.
using HalveBlock =
    std::function<std::vector<Index>(std::span<const Index> block, const BlockId& id)>;

class MergeAndReduce {
 public:
  static constexpr Index kUnlimited = std::numeric_limits<Index>::max();

  /// `t`: batch size, even, >= 2. `levels`: T >= 0, the level that is never halved and so grows
  /// without bound; kUnlimited: as many as the stream asks for, each of at most t tokens.
  /// Errors: std::logic_error for an odd or too small t, or a negative T.
  explicit MergeAndReduce(Index t, Index levels = kUnlimited);

  /// A token arrives. At most size() + 1 tokens are held while it is sorted in.
  void append(Index token, const HalveBlock& halve);

  /// Halves the batch size: afterwards the levels have the shape that they would have had with t/2
  /// from the start (a level of the old t, t/2 tokens, is a full block of the new one). Never holds
  /// more than before. t must be divisible by 4 and T unlimited, else std::logic_error.
  void lower(const HalveBlock& halve);

  Index t() const { return t_; }
  Index arrivals() const { return arrivals_; }
  /// Tokens held over all levels.
  Index size() const;
  /// C^0, C^1, ...; tokens of each in order of arrival. Those of C^l have weight 2^l.
  std::span<const std::vector<Index>> levels() const { return levels_; }
  /// Sum of the weights, exactly.
  double weight() const;

 private:
  void reduce(std::span<const Index> block, Index level, Index number, const HalveBlock& halve);

  Index t_;
  Index top_;
  Index arrivals_ = 0;
  std::vector<std::vector<Index>> levels_;
};

}  // namespace kvbench
