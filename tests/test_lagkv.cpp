// lagkv: the arithmetic of partitions by hand, and the selection against the definition.
#include "selection_checks.hpp"

namespace kvbench::test_lagkv {
namespace {

using reference::Real;

// Softmax over part p of the channels' sample deviations, scaled by part p + 1.
reference::Vec reference_part(const reference::Rows& rows, std::size_t begin, std::size_t lag) {
  reference::Vec out;
  for (std::size_t i = begin; i < begin + lag; ++i) {
    reference::Vec scaled;
    for (std::size_t t = 0; t < rows[0].size(); ++t) {
      Real low = rows[begin + lag][t];
      Real high = low;
      for (std::size_t j = begin + lag; j < begin + 2 * lag; ++j) {
        low = std::min(low, rows[j][t]);
        high = std::max(high, rows[j][t]);
      }
      scaled.push_back(high > low ? (rows[i][t] - low) / (high - low) : 0);
    }
    Real mean = 0;
    Real square = 0;
    for (const Real x : scaled) {
      mean += x / static_cast<Real>(scaled.size());
    }
    for (const Real x : scaled) {
      square += (x - mean) * (x - mean);
    }
    out.push_back(scaled.size() < 2 ? 0 : std::sqrt(square / static_cast<Real>(scaled.size() - 1)));
  }
  return reference::softmax(out);
}

// Each token's place in the order of keeping: whole ranks; from `lag` on for what ranks highest,
// the newer the higher.
reference::Vec reference_ranks(const KvHead& head, const std::vector<Index>& tokens,
                               std::size_t sink, std::size_t lag) {
  const reference::Rows k = reference::rows_at(head.k, tokens);
  const reference::Rows v = reference::rows_at(head.v, tokens);
  reference::Vec ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    ranks.push_back(static_cast<Real>(lag + i));
  }
  const std::size_t parts = tokens.size() > sink ? (tokens.size() - sink) / lag : 0;
  for (std::size_t p = 0; p + 1 < parts; ++p) {
    const reference::Vec a = reference_part(k, sink + p * lag, lag);
    const reference::Vec b = reference_part(v, sink + p * lag, lag);
    for (std::size_t i = 0; i < lag; ++i) {
      Real below = 0;
      for (std::size_t j = 0; j < lag; ++j) {
        const Real mine = (a[i] + b[i]) / 2;
        const Real other = (a[j] + b[j]) / 2;
        below += other < mine || (other == mine && j > i) ? 1 : 0;
      }
      ranks[sink + p * lag + i] = below;
    }
  }
  return ranks;
}

TEST(LagKv, EqualsReference) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    KvHead head = make_head({.n = 130, .dv = 5}, seed);
    for (Index i = 0; i < 130; ++i) {
      head.k.row(i)[3] = 0.5F;  // a channel without a scale in any partition
      head.v.row(i)[1] = i < 60 ? 0.25F : head.v.row(i)[1];  // and one in some
    }
    for (const std::vector<Index>& tokens : token_lists(4, 120)) {
      const JobOf job("lagkv", head, tokens, {});
      for (const Given& given : settings("lag_sink=0,4,11;lag=1,2,7,16,40")) {
        const reference::Vec ranks =
            reference_ranks(head, tokens, static_cast<std::size_t>(index_in(given, "lag_sink")),
                            static_cast<std::size_t>(index_in(given, "lag")));
        // Scores of random tokens are no ties within rounding; ranks are whole numbers.
        expect_best_kept(job, ranks, 0, given);
      }
    }
  }
}

// No partition, one, one short of two, two, two and a tail, three: what has no next one ranks
// highest, and the newest stay.
TEST(LagKv, FewTokensEqualReference) {
  for (const Index m : {1, 3, 4, 5, 11, 12, 19, 20, 23, 28}) {
    const KvHead head = make_head({.n = m + 10}, 1);
    const JobOf job("lagkv", head, positions(0, m), {});
    const reference::Vec ranks = reference_ranks(head, job.tokens(), 4, 8);
    for (Index count = 0; count <= m; ++count) {
      ASSERT_EQ(job.kept(count, {{"lag_sink", "4"}, {"lag", "8"}}),
                reference::best(job.tokens(), ranks, count))
          << m << " " << count;
    }
  }
}

// Keys and values of one channel have no deviation: all scores are equal.
TEST(LagKv, OneChannelHasNoSpread) {
  const JobOf job("lagkv", make_head({.d = 1, .dv = 1}, 2), positions(0, 32), {});
  EXPECT_EQ(job.kept(10, {{"lag_sink", "0"}, {"lag", "8"}}),
            (std::vector<Index>{0, 8, 24, 25, 26, 27, 28, 29, 30, 31}));
}

}  // namespace
}  // namespace kvbench::test_lagkv
