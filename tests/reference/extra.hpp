// Slow references of what scores with extra queries, from the definitions (docs/methods.md).
#pragma once

#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// A segment of extra queries that look back at the prompt.
struct ExtraRows {
  std::vector<Rows> q;  // [group][m][d]
  Rows k;               // [m][d], the segment's own keys
  Vec residual;         // [m]
  Index prefix = 0;     // tokens that the model had read
  Index first = 0;      // the chunk that the segment is about: [first, last)
  Index last = 0;
};

/// KVzip: for each token the largest softmax weight from any query of a segment about it, the
/// softmax over the first min(4, first) tokens, the chunk, and the segment's keys up to the query.
/// `w` [hidden][group dv]: with KVzip+, else null.
Vec kvzip(const kvbench::KvHead& head, const std::vector<ExtraRows>& segments, const Rows* w);

/// [group][n]: sums of softmax weights of the last `count` queries of all segments together, each
/// over tokens [0, prefix) and its segment's keys up to itself.
Rows extra_sums(const kvbench::KvHead& head, const std::vector<ExtraRows>& segments, Index count);

}  // namespace reference
