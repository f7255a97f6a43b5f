// The values of CaM's cache: what an evicted one does to those behind it.
// [1] Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs Inference", ICML 2024.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/eviction_stream.hpp"

namespace kvbench {

/// clamp(own / mean, 0, 1): how likely an evicted token of score `own` is merged into tokens of
/// that mean score. A mean of 0 counts as probability 1 where `own` > 0 and 0 where it is 0.
inline double cam_probability(double own, double mean) {
  if (mean > 0.0) {
    return std::clamp(own / mean, 0.0, 1.0);
  }
  return own > 0.0 ? 1.0 : 0.0;
}

/// One eviction at a time. Keys stay the trace's; a value that took something in is kept here, as
/// an element of the trace's type.
class CamValues {
 public:
  /// `draws` is read at an evicted token's position: one uniform per token, whatever the others
  /// draw. The head must outlive the object.
  CamValues(const KvHead& head, const RngStream& draws) : head_(head), draws_(draws) {}

  /// `evicted` has left `kept` (ascending). With the probability of its score against the mean of
  /// the evicted.after_count tokens behind it, each of these gets an equal part of its value, as
  /// that is by now; every sum is rounded once. Time O(after_count dv).
  void evict(const Eviction& evicted, std::span<const Index> kept);

  /// `kept` as a cache: held where the value is the trace's, else made; weight 1.
  Compressed view(std::span<const Index> kept) const;

 private:
  std::vector<float> value_of(Index token) const;

  const KvHead& head_;
  RngStream draws_;
  std::map<Index, std::vector<float>> changed_;  // of kept tokens only
  Index merged_ = 0;
};

}  // namespace kvbench
