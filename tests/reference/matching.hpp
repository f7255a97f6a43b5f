// Attention matching by its definition: every row of the reference attention in long double.
#pragma once

#include "reference/reference.hpp"

namespace reference {

/// Of the queries at positions [begin, end) of all query heads, heads one after another: each
/// against all of `tokens`, whatever its position.
struct Reference {
  Rows softmax;      ///< [R, m]
  Rows exponential;  ///< [R, m]: divided by the row's largest
  Vec mass;          ///< [R]: sums of those
  Rows output;       ///< [R, dv]
};
Reference reference(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                    Index end);

/// Columns `places` of rows.
Rows columns(const Rows& rows, const std::vector<Index>& places);

/// Rows of `exponential` times w, each divided by its sum.
Rows weighted_softmax(const Rows& exponential, const Vec& w);

Rows product(const Rows& a, const Rows& b);

}  // namespace reference
