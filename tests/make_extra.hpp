// Sets of extra queries for tests of methods: in memory, as a reference sees them, and what a layer
// is said to have.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "core/extra.hpp"
#include "make_head.hpp"
#include "reference/extra.hpp"

namespace kvbench {

struct SegmentShape {
  Index queries = 6;
  Index prefix = 0;
  Range about;
};

/// Random queries and keys as large as those of make_head, norms 1, 1.5, 2, ...; the last norm of
/// each segment is 0.
inline ExtraSet make_extra(const std::string& name, const KvHead& head,
                           const std::vector<SegmentShape>& segments, unsigned seed) {
  std::mt19937_64 generator(seed);
  ExtraSet out{name, {}};
  for (const SegmentShape& shape : segments) {
    ExtraSegment s;
    s.info = {shape.queries, shape.prefix, shape.about, true};
    for (Index g = 0; g < head.group(); ++g) {
      s.q.push_back(normal_matrix(shape.queries, head.d(), 3.0, generator));
    }
    s.k = normal_matrix(shape.queries, head.d(), 3.0, generator);
    for (Index j = 0; j < shape.queries; ++j) {
      s.positions.push_back(shape.prefix + j);
      s.residual_norm.push_back(j + 1 == shape.queries ? 0.0F
                                                       : 1.0F + static_cast<float>(j) / 2.0F);
    }
    out.segments.push_back(std::move(s));
  }
  return out;
}

inline std::vector<reference::ExtraRows> reference_rows(const ExtraSet& set) {
  std::vector<reference::ExtraRows> out;
  for (const ExtraSegment& s : set.segments) {
    reference::ExtraRows& rows = out.emplace_back();
    for (const Matrix& q : s.q) {
      rows.q.push_back(reference::rows_of(q));
    }
    rows.k = reference::rows_of(s.k);
    rows.residual.assign(s.residual_norm.begin(), s.residual_norm.end());
    rows.prefix = s.info.prefix.value_or(0);
    rows.first = s.info.about.value_or(Range{}).begin;
    rows.last = s.info.about.value_or(Range{}).end;
  }
  return out;
}

/// What a layer says of the set.
inline ExtraSetInfo info_of(const ExtraSet& set) {
  ExtraSetInfo out{set.name, {}};
  for (const ExtraSegment& s : set.segments) {
    out.segments.push_back(s.info);
  }
  return out;
}

/// A set `repeat` of two chunks that cover all tokens, and scores `auto` with ties, for tests that
/// run every method with its defaults.
inline std::vector<ExtraSet> usual_extra(const KvHead& head) {
  const Index half = head.n() / 2;
  return {
      make_extra("repeat", head, {{7, head.n(), {0, half}}, {5, head.n(), {half, head.n()}}}, 99)};
}

inline std::vector<NamedScores> usual_scores(const KvHead& head) {
  NamedScores out{"auto", {}};
  for (Index i = 0; i < head.n(); ++i) {
    out.values.push_back(static_cast<float>(i * 7 % 11));
  }
  return {out};
}

}  // namespace kvbench
