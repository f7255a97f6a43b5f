// What is selected under --gpu-math fast, on a machine of the CPU, against the exact functions:
// walks, nearest keys and gains; and that a head takes the fast functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/device_on.hpp"
#include "fast_heads.hpp"

namespace kvbench {
namespace {

using namespace testing_fast;

struct Walked {
  std::vector<std::int8_t> signs;
  std::vector<double> probability;
  friend bool operator==(const Walked&, const Walked&) = default;
};

// A draw lies within 1e-5 of its probability once in 1e5 tokens: of the 2048 of a case none is
// expected to, and where one does half the signs of its block may differ.
TEST(FastWalk, SignsRarelyDiffer) {
  unsigned seed = 300;
  for (const Index d : {64, 80, 128}) {
    for (const WalkStep step : {WalkStep::theory, WalkStep::fixed, WalkStep::self}) {
      for (const bool center : {false, true}) {
        const KvHead head = head_of({2048, 1, d, d + 5, 1}, DType::float16, seed++, 6.0);
        std::mt19937_64 generator(seed);
        std::uniform_real_distribution<double> uniform(0.0, 1.0);
        const std::vector<Index> tokens = positions(0, 2048);
        const std::vector<double> weights(2048, 1.5);
        std::vector<double> uniforms(2048);
        std::generate(uniforms.begin(), uniforms.end(), [&] { return uniform(generator); });
        BalanceBlocks blocks{tokens, weights, uniforms, 300, step == WalkStep::self, {}};
        blocks.options.step = step;
        blocks.options.scale = head.scale;
        blocks.options.center = center;
        const Walked got = on_every_machine(
            head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
              Walked out{std::vector<std::int8_t>(2048), std::vector<double>(2048)};
              const WalkCounts counts = balance_blocks_fast(machine, tensors, scales.k, scales.v,
                                                            blocks, out.signs, out.probability);
              EXPECT_EQ(counts.steps, 2048);
              return out;
            });
        Walked want{std::vector<std::int8_t>(2048), std::vector<double>(2048)};
        WalkScratch scratch;
        balance_blocks(head, blocks, want.signs, want.probability, scratch);
        Index differ = 0;
        bool alike = true;  // so far in this block
        for (std::size_t i = 0; i < 2048; ++i) {
          alike = alike || i % 300 == 0;
          EXPECT_EQ(std::abs(static_cast<int>(got.signs[i])), 1);
          if (alike) {
            expect_near(got.probability[i], want.probability[i], 1e-4, "probability");
          }
          differ += got.signs[i] != want.signs[i] ? 1 : 0;
          alike = alike && got.signs[i] == want.signs[i];
        }
        EXPECT_LE(differ, 20) << "1 % of the signs";
      }
    }
  }
}

TEST(FastWalk, OddBlocksAndExtremes) {
  for (const Index count : {1, 2, 7, 65, 129}) {
    for (const double norm : {0.0, 3.0, 40.0}) {
      const KvHead head = head_of({129, 1, 33, 3, 1}, DType::float32, 340, norm);
      const std::vector<Index> tokens = positions(0, count);
      const std::vector<double> weights(static_cast<std::size_t>(count), 1.0);
      const std::vector<double> uniforms(static_cast<std::size_t>(count), 0.4);
      const BalanceBlocks blocks{tokens, weights, uniforms, 64, false, {}};
      const Walked got = on_every_machine(
          head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
            Walked out{std::vector<std::int8_t>(tokens.size()), std::vector<double>(tokens.size())};
            balance_blocks_fast(machine, tensors, scales.k, scales.v, blocks, out.signs,
                                out.probability);
            return out;
          });
      for (std::size_t i = 0; i < got.signs.size(); ++i) {
        EXPECT_EQ(std::abs(static_cast<int>(got.signs[i])), 1);
        EXPECT_TRUE(got.probability[i] >= 0.0 && got.probability[i] <= 1.0);
      }
    }
  }
}

// Cosines are off by less than 1e-6 (fast_similarity.hpp): places equal but for cosines as close.
TEST(FastSimilar, NearestUpToRounding) {
  unsigned seed = 400;
  for (const Index n : {2, 7, 65, 513}) {
    for (const Index d : {1, 3, 64, 80, 256}) {
      for (const DType type : kTypes) {
        KvHead head = head_of({n, 1, d, 2, 1}, type, seed);
        if (seed % 2 == 0) {
          head.k = odd_keys(n, d, seed);
          round_to(type, head.k.data(), n * d);
        }
        ++seed;
        for (const Index kept : {Index{1}, n / 2, n - 1}) {
          std::vector<Index> to;
          std::vector<Index> from;
          for (Index i = 0; i < n; ++i) {
            (i * 7 % n < kept ? to : from).push_back(i);
          }
          if (to.empty()) {
            continue;
          }
          const auto got = on_every_machine(
              head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
                return most_similar_fast(machine, tensors, scales.k, to, from);
              });
          const auto want = most_similar(head, to, from);
          const std::vector<double> inverse_to = inverse_norms(head.k, to);
          const std::vector<double> inverse_from = inverse_norms(head.k, from);
          const auto cosine = [&](std::size_t i, Index place) {
            const auto at = static_cast<std::size_t>(place);
            const float* a = head.k.row(from[i]);
            return std::inner_product(a, a + d, head.k.row(to[at]), 0.0) * inverse_from[i] *
                   inverse_to[at];
          };
          ASSERT_EQ(got.size(), want.size());
          for (std::size_t i = 0; i < want.size(); ++i) {
            ASSERT_TRUE(got[i] >= 0 && got[i] < static_cast<Index>(to.size()));
            EXPECT_TRUE(got[i] == want[i] || cosine(i, want[i]) - cosine(i, got[i]) <= 1e-6);
          }
        }
      }
    }
  }
}

TEST(FastSimilar, EqualKeysGoToTheLowestPlaceAndTinyNormsCount) {
  KvHead head = head_of({200, 1, 24, 2, 1}, DType::float32, 450);
  for (Index i = 1; i < 190; ++i) {
    std::copy_n(head.k.row(0), 24, head.k.row(i));
  }
  std::vector<Index> to(180);
  std::iota(to.begin(), to.end(), Index{5});
  const auto nearest = [&](const std::vector<Index>& columns, const std::vector<Index>& rows) {
    return on_every_machine(head,
                            [&](HostMachine& machine, const auto& tensors, const auto& scales) {
                              return most_similar_fast(machine, tensors, scales.k, columns, rows);
                            });
  };
  EXPECT_EQ(nearest(to, {0, 1, 2}), (std::vector<Index>{0, 0, 0}));
  EXPECT_TRUE(nearest(to, {}).empty());
  // All keys a thousand times smaller: their inverse norms are 1e3 times as large.
  for (Index i = 0; i < 200 * 24; ++i) {
    head.k.data()[i] *= 1e-12F;
  }
  EXPECT_EQ(nearest({195, 50}, {0}), (std::vector<Index>{1}));
  head.k = Matrix(200, 24);
  EXPECT_EQ(nearest({195, 50}, {0}), (std::vector<Index>{0}));
}

TEST(FastCoverage, GainsNearTheExactOnesAndConsistent) {
  for (const Case& c : {Case{1, 1, 1, 1, 1}, Case{2, 1, 3, 1, 1}, Case{65, 1, 128, 1, 1},
                        Case{129, 1, 256, 1, 1}, Case{700, 1, 20, 1, 1}}) {
    for (const Similarity kind : {Similarity::relu, Similarity::one_plus, Similarity::absolute}) {
      const Matrix k = odd_keys(c.n, c.d, static_cast<unsigned>(c.n + c.d));
      const std::vector<Index> ground = positions(0, c.n);
      FacilityLocation exact(k, ground, kind, Index{1} << 30);
      UnitKeys units(c.n, c.d);
      for (Index i = 0; i < c.n; ++i) {
        units.set(i, k.view().row_span(i));
      }
      HostMachine machine;
      HostMachine small(HostMachine::Order::backward);
      small.set_scratch_bytes(1);
      FastCoverageOn<HostMachine> fast(machine, units, c.n, kind);
      FastCoverageOn<HostMachine> again(small, units, c.n, kind);
      // n similarities, each off by less than 1e-6, and by half a unit where it is rounded.
      const auto off = static_cast<double>(c.n) * (1e-6 * static_cast<double>(kSimilarityOne) + 1);
      const auto expect_close = [&](std::span<const std::int64_t> a,
                                    std::span<const std::int64_t> b) {
        ASSERT_EQ(a.size(), b.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
          EXPECT_TRUE(std::abs(static_cast<double>(a[i] - b[i])) <= off) << a[i] << " " << b[i];
        }
      };
      const std::vector<std::int64_t> single = fast.singletons();
      expect_close(single, exact.singletons());
      EXPECT_EQ(single, again.singletons());
      std::vector<std::int64_t> before(ground.size());
      fast.gains(ground, before);
      EXPECT_EQ(before, single);
      for (const Index u : {Index{0}, c.n / 2, c.n - 1}) {
        const std::int64_t gain = fast.add(u);
        EXPECT_EQ(gain, again.add(u));
        EXPECT_EQ(gain, before[static_cast<std::size_t>(u)]);  // what gains() said of it
        exact.add(u);
        std::vector<std::int64_t> after(ground.size());
        std::vector<std::int64_t> want(ground.size());
        fast.gains(ground, after);
        exact.gains(ground, want);
        expect_close(after, want);
        again.gains(ground, want);
        EXPECT_EQ(after, want);
        EXPECT_EQ(after[static_cast<std::size_t>(u)], 0);
        for (std::size_t i = 0; i < after.size(); ++i) {
          EXPECT_LE(after[i], before[i]);  // a bound stays one, to the last bit
        }
        before = after;
      }
    }
  }
}

TEST(FastHead, TakesTheFastFunctions) {
  const KvHead head = head_of({150, 40, 24, 12, 2}, DType::float16, 500);
  const DeviceHeadOn<HostMachine> fast(HostMachine(), head, GpuMath::fast);
  const DeviceHeadOn<HostMachine> exact(HostMachine(), head);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const FastScales scales(machine, tensors);
  const std::vector<Index> last = positions(110, 150);
  const MatrixD queries = scaled_queries(head, 1, 40);
  const SumPiece piece{head.k, head.v, last, {}, 1.0F, Part::both, {}};
  const auto numerator = flat(fast.partial_sums(queries, piece).numerator);
  EXPECT_EQ(numerator, flat(partial_sums_fast(machine, tensors, scales, queries, piece).numerator));
  EXPECT_NE(numerator, flat(exact.partial_sums(queries, piece).numerator));
  const auto output = flat(fast.exact_attention(1, last).output);
  EXPECT_EQ(output, flat(exact_attention_fast(machine, tensors, scales, 1, last).output));
  EXPECT_NE(output, flat(exact.exact_attention(1, last).output));
  const auto sums = fast.attention_sums({110, 150});
  EXPECT_EQ(sums, attention_sums_fast(machine, tensors, scales, {110, 150}));
  EXPECT_NE(sums, exact.attention_sums({110, 150}));
  EXPECT_EQ(fast.most_similar(last, positions(0, 50)),
            most_similar_fast(machine, tensors, scales.k, last, positions(0, 50)));

  UnitKeys units(150, 24);
  for (Index i = 0; i < 150; ++i) {
    units.set(i, head.k.view().row_span(i));
  }
  EXPECT_NE(fast.coverage(units, 150, Similarity::relu)->singletons(),
            exact.coverage(units, 150, Similarity::relu)->singletons());
}

}  // namespace
}  // namespace kvbench
