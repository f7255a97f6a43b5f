// For tests of methods that keep the tokens with the largest scores: kept sets against a
// reference's scores.
#pragma once

#include "method_checks.hpp"
#include "reference/selection.hpp"

namespace kvbench {

/// The job keeps the tokens with the largest `scores`, one per token, at sizes from none to all but
/// one. Scores closer than a relative `tolerance` may go either way; at 0 equal ones go to the
/// lowest position.
inline void expect_best_kept(const JobOf& job, const reference::Vec& scores,
                             reference::Real tolerance, const Given& given = {}) {
  const auto m = static_cast<Index>(job.tokens().size());
  for (const Index count : {Index{0}, Index{1}, m / 9, m / 4, m / 2, m - 1}) {
    const std::vector<Index> kept = job.kept(count, given);
    if (tolerance > 0) {
      ASSERT_TRUE(reference::is_top(job.tokens(), scores, kept, count, tolerance)) << count;
    } else {
      ASSERT_EQ(kept, reference::best(job.tokens(), scores, count)) << count;
    }
  }
}

/// A sketch's entries [d][columns] by their definition: draw t * columns + c over sqrt(columns).
inline reference::Rows sketch_of(const RngStream& normals, Index d, Index columns) {
  reference::Rows out(columns > 0 ? static_cast<std::size_t>(d) : 0);
  for (std::size_t t = 0; t < out.size(); ++t) {
    for (Index c = 0; c < columns; ++c) {
      const auto at = t * static_cast<std::uint64_t>(columns) + static_cast<std::uint64_t>(c);
      out[t].push_back(static_cast<reference::Real>(normals.normal(at)) /
                       std::sqrt(static_cast<reference::Real>(columns)));
    }
  }
  return out;
}

/// Tokens [begin, end), and some of them.
inline std::vector<std::vector<Index>> token_lists(Index begin, Index end) {
  return {positions(begin, end), gappy(begin, end)};
}

}  // namespace kvbench
