// keydiff against the definition.
#include "selection_checks.hpp"

namespace kvbench::test_keydiff {
namespace {

// Cosines by their definition, the mean's length divided out.
reference::Vec scores_of(const KvHead& head, const std::vector<Index>& tokens) {
  const reference::Rows keys = reference::rows_of(head.k);
  reference::Rows unit;
  reference::Vec mean(keys[0].size(), 0);
  for (const Index i : tokens) {
    reference::Vec k = keys[i];
    const reference::Real norm = std::sqrt(reference::dot(k, k));
    for (std::size_t t = 0; t < k.size(); ++t) {
      k[t] = norm > 0 ? k[t] / norm : 0;
      mean[t] += k[t] / static_cast<reference::Real>(tokens.size());
    }
    unit.push_back(k);
  }
  const reference::Real length = std::sqrt(reference::dot(mean, mean));
  reference::Vec out;
  for (const reference::Vec& k : unit) {
    out.push_back(-reference::dot(k, mean) / length);
  }
  return out;
}

TEST(KeyDiff, EqualsReference) {
  HeadShape shape{.n = 200, .d = 33};
  for (unsigned seed = 0; seed < 10; ++seed) {
    shape.key_offset = 0.2 * seed;
    for (const std::vector<Index>& tokens : token_lists(8, 170)) {
      const KvHead head = make_head(shape, seed);
      const JobOf job("keydiff", head, tokens, {});
      // Cosines near 0 have no relative accuracy; none of these draws is a tie within 1e-12.
      expect_best_kept(job, scores_of(head, tokens), 0);
    }
  }
}

TEST(KeyDiff, TheOddOneOutIsKeptAndZeroKeysAreOrthogonal) {
  KvHead head = make_head({}, 1);
  repeat_first_row(head.k);
  for (Index t = 0; t < 8; ++t) {
    head.k.row(30)[t] = -head.k.row(0)[t];
    head.k.row(40)[t] = 0.0F;
  }
  const JobOf job("keydiff", head, positions(10, 50), {});
  EXPECT_EQ(job.kept(1), (std::vector<Index>{30}));
  EXPECT_EQ(job.kept(4), (std::vector<Index>{10, 11, 30, 40}));
}

}  // namespace
}  // namespace kvbench::test_keydiff
