// q-filters: directions by hand, and the selection against the reference's power iteration.
#include "reference/q_filters.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_q_filters {
namespace {

// A direction moves by the rounding of its matrix over the gap of its eigenvalues (here above a
// hundredth); relative to the larger of two scores, which may nearly cancel.
constexpr long double kRounding = 1e-9L;

TEST(QFilters, EqualsReference) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    KvHead head = make_head({.n = 120, .nq = 80, .d = 6, .group = 3}, seed);
    for (std::size_t g = 0; g < 3; ++g) {  // directions in common, as models have them
      for (Index j = 0; j < 80; ++j) {
        head.q[g].row(j)[g] += seed % 2 == 0 ? 2.0F : -2.0F;
      }
    }
    for (const std::vector<Index>& tokens : token_lists(8, 70)) {
      for (const Range scoring : {Range{40, 100}, Range{10, 60}, Range{99, 100}}) {
        const JobOf job("q-filters", head, tokens, scoring);
        reference::Vec filter(6, 0);
        for (Index g = 0; g < 3; ++g) {
          const reference::Vec v =
              reference::query_direction(head, g, std::max<Index>(40, scoring.begin), scoring.end);
          for (std::size_t t = 0; t < 6; ++t) {
            filter[t] += v[t] / 3;
          }
        }
        reference::Vec scores;
        for (const reference::Vec& k : reference::rows_at(head.k, tokens)) {
          scores.push_back(reference::dot(k, filter));
        }
        expect_best_kept(job, scores, kRounding);
      }
    }
  }
}

TEST(QFilters, WithoutQueriesTheLowestPositionsStay) {
  KvHead head = make_head({}, 2);
  EXPECT_EQ(JobOf("q-filters", head, positions(5, 50), {60, 60}).kept(4), positions(5, 9));
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), q.rows() * q.cols(), 0.0F);
  }
  EXPECT_EQ(JobOf("q-filters", head, positions(5, 50), {10, 60}).kept(4), positions(5, 9));
}

}  // namespace
}  // namespace kvbench::test_q_filters
