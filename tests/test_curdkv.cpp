// curdkv against its definition.
#include "reference/leverage.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_curdkv {
namespace {

constexpr reference::Real kRounding = 1e-13L;  // sums of a window's squares in float64

TEST(CurdKv, EqualsReference) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    for (const std::vector<Index>& tokens : {positions(8, 170), gappy(8, 170), positions(3, 12)}) {
      const JobOf job("curdkv", make_head({.n = 200, .d = 33, .dv = 7}, seed), tokens, {});
      for (const Index window : {1, 5, 16, 1000}) {
        for (const Index first : {0, 4, 500}) {
          expect_best_kept(job, reference::curdkv(job.head(), tokens, window, first), kRounding,
                           {{"window", std::to_string(window)}, {"first", std::to_string(first)}});
        }
      }
    }
  }
}

TEST(CurdKv, WindowsOfZerosAndHugeKeys) {
  KvHead head = make_head({}, 2);
  std::fill_n(head.k.row(26), 16 * 8, 0.0F);
  std::fill_n(head.v.row(42), 16 * 8, 0.0F);
  for (Index t = 0; t < 8; ++t) {
    head.k.row(20)[t] = 3e38F;
    head.v.row(20)[t] = 3e38F;
    head.k.row(21)[t] = 1e-45F;
  }
  const JobOf job("curdkv", head, positions(10, 58), {});
  EXPECT_EQ(job.kept(5), (std::vector<Index>{10, 11, 12, 13, 20}));
  // What is left is 0 or nearly; equal zeros go by position.
  const std::vector<Index> kept = job.kept(24);
  EXPECT_EQ(kept.size(), 24U);
  EXPECT_EQ(kept[16], 26);
  EXPECT_EQ(kept.back(), 33);
}

}  // namespace
}  // namespace kvbench::test_curdkv
