// knorm against the definition.
#include "selection_checks.hpp"

namespace kvbench::test_knorm {
namespace {

TEST(Knorm, EqualsReference) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    for (const std::vector<Index>& tokens : token_lists(8, 170)) {
      KvHead head = make_head({.n = 200, .d = 33}, seed);
      std::copy_n(head.k.row(50), 33, head.k.row(21));  // a tie
      const JobOf job("knorm", head, tokens, {});
      reference::Vec scores;
      for (const reference::Vec& k : reference::rows_at(head.k, tokens)) {
        scores.push_back(
            -static_cast<float>(std::sqrt(reference::dot(k, k))));  // norms are float32
      }
      expect_best_kept(job, scores, 0);
    }
  }
}

TEST(Knorm, NormsThatAreOneFloat32AreATie) {
  KvHead head = make_head({.d = 2}, 1);
  for (Index i = 0; i < 64; ++i) {
    head.k.row(i)[0] = 1.0F;
    head.k.row(i)[1] = i < 32 ? 1e-5F : 0.0F;  // sqrt(1 + 1e-10) is 1 in float32
  }
  const JobOf job("knorm", head, positions(20, 50), {});
  EXPECT_EQ(job.kept(4), positions(20, 24));
}

}  // namespace
}  // namespace kvbench::test_knorm
