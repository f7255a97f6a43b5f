// KVReviver's one Compress of all tokens, from its definition: sort by score, sum in long double,
// round once, rebuild.
#pragma once

#include <vector>

#include "reference/kvreviver.hpp"

namespace reference {

struct BatchReference {
  const kvbench::KvHead* head = nullptr;
  std::vector<Index> tokens;
  Vec scores;  ///< one per token
  ReviverSizes sizes;
  Element element;
  Real largest = 0;  ///< finite element
  std::vector<std::uint64_t> words;
  bool mean = false;  ///< the cells' mean

  std::vector<Index> exact;  ///< ascending
  std::vector<Index> vague;  ///< ascending
  Index overflows = 0;

  /// Which tokens stay.
  void choose();
  /// Estimated keys and values of the vague ones, in their order.
  Rows rebuilt_keys();
  Rows rebuilt_values();
  /// The mean of their keys or values.
  Vec mean_of(kvbench::MatrixView m) const;

 private:
  ReviverReference filled();
};

/// Default shares (45, 45, 10 hundredths) of `budget` bytes without a sketch; `mean`: one token and
/// its count come first out of Vague's.
ReviverSizes plain_sizes(Index budget, Index pair_bytes, bool mean);

}  // namespace reference
