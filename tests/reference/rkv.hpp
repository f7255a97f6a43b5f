// R-KV from its definition: the whole matrix of cosines, and the stream step by step.
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

struct RkvReference {
  Real lambda = 0.07L, threshold = 0.5L;
  Index kernel = 7;
  bool largest = true;  ///< of the query heads' logits; else their mean
};

/// [cache]: softmax of the mean over rows of the cosines, of which each row lost its own and that
/// of its last similar token.
Vec rkv_redundancy(const kvbench::KvHead& head, const std::vector<Index>& cache, Real threshold);

/// [cache]: mean weight from queries [begin, end) over the cache's tokens before them; else 0.
Vec rkv_importance(const kvbench::KvHead& head, const std::vector<Index>& cache, Index begin,
                   Index end, bool largest);

/// [own]; tokens at or behind `begin` are above all others, the newest most.
Vec rkv_scores(const kvbench::KvHead& head, const std::vector<Index>& cache,
               const std::vector<Index>& own, Index begin, Index end, const RkvReference& rules);

/// What a stream holds beside sinks and recent window.
struct RkvStream {
  RkvReference rules;
  Index capacity = 0, buffer = 1, window = 8, sink = 0, recent = 0;
  std::vector<Index> own;
  int compressions = 0;

  void step(const kvbench::KvHead& head, Index j);
};

}  // namespace reference
