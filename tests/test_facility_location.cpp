// Facility location's gains and removal losses, and phi, against their definitions.
#include <gtest/gtest.h>

#include <type_traits>

#include "attention/facility_location.hpp"
#include "make_head.hpp"
#include "reference/bumblebee.hpp"
#include "streams/concave_phi.hpp"
#include "streams/retention.hpp"

namespace kvbench::test_facility_location {
namespace {

// How far a similarity may be from that of long double, in units of 2^-30; sums of the units are
// exact. float64: one, where the two round apart (probability 1e-7 a pair). float32: unit keys of
// width d are rounded once and their product d times, by 2^-24 at most, which may also be what
// makes a cosine count as 1.
template <class T>
long double slack_of_pair(Index d) {
  return std::is_same_v<T, double> ? 1 : 64 * (2 * d + 6);
}

// The retained set S of a stream without scores: its members and the loss of removing each.
template <class T>
class RetainedKeys {
 public:
  RetainedKeys(Index capacity, Index d, Similarity kind) {
    state_.rules.lambda = 1.0;  // neighbours are kept
    state_.rules.kind = kind;
    state_.d = d;
    reserve(state_, capacity, arena_);
  }

  Index size() const { return state_.members; }
  void add(std::span<const float> key) { add_member(OneThread(), state_, key.data(), 0, 0); }
  // The newest moves to `place`.
  void remove(Index place) { remove_member(OneThread(), state_, place); }
  // f(S) - f(S - i) and f(S), in units of 1 / kSimilarityOne.
  std::int64_t loss(Index place) const { return state_.loss(place); }
  std::int64_t value() const { return state_.nonzero * kSimilarityOne; }

 private:
  HostArena arena_;
  RetentionState<T> state_;
};

template <class T>
class FacilityLocationIn : public testing::Test {};
template <class T>
class RetainedKeysIn : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(FacilityLocationIn, Elements);
TYPED_TEST_SUITE(RetainedKeysIn, Elements);

constexpr Similarity kKinds[] = {Similarity::relu, Similarity::one_plus, Similarity::absolute};

reference::Sim reference_of(Similarity kind) {
  return kind == Similarity::relu       ? reference::Sim::relu
         : kind == Similarity::one_plus ? reference::Sim::one_plus
                                        : reference::Sim::absolute;
}

// f(A) in the integer's units.
long double units(const reference::Mixture& g, Similarity kind, const std::vector<Index>& a) {
  return g.f(a) * 0x1p30L / (kind == Similarity::one_plus ? 2 : 1);
}

// Of one block of keys and of several.
TYPED_TEST(FacilityLocationIn, GainsEqualTheDefinitionWithAndWithoutMatrix) {
  for (const Similarity kind : kKinds) {
    for (const Index n : {1, 2, 7, 40, 127, 128, 129, 300}) {
      const Matrix k = odd_keys(n + 3, 6, static_cast<unsigned>(n));
      const std::vector<Index> ground = positions(3, n + 3);
      reference::Rows keys = reference::rows_of(k);
      keys.erase(keys.begin(), keys.begin() + 3);
      const reference::Mixture g{
          reference::similarities(keys, reference_of(kind), true), {}, 1, {}};
      FacilityLocation<TypeParam> with(k, ground, kind, Index{1} << 30);
      FacilityLocation<TypeParam> without(k, ground, kind, 0);
      ASSERT_TRUE(with.has_matrix());
      ASSERT_FALSE(without.has_matrix());
      const std::vector<Index> all = positions(0, n);
      const auto slack = static_cast<long double>(n) * slack_of_pair<TypeParam>(6);
      EXPECT_LE(std::abs(static_cast<long double>(with.total()) - units(g, kind, all)), slack);
      EXPECT_EQ(with.all_gains(), without.all_gains());
      std::vector<Index> a;
      std::vector<std::int64_t> before = with.all_gains();
      for (Index step = 0; step < n; step += 1 + n / 7) {
        std::vector<std::int64_t> gains(all.size());
        std::vector<std::int64_t> again(all.size());
        with.gains(all, gains);
        without.gains(all, again);
        ASSERT_EQ(gains, again);
        ASSERT_EQ(with.all_gains(), gains);
        ASSERT_EQ(without.all_gains(), gains);
        const long double value = units(g, kind, a);
        for (const Index u : all) {
          std::vector<Index> more = a;
          more.push_back(u);
          const long double gain = units(g, kind, more) - value;
          const auto i = static_cast<std::size_t>(u);
          ASSERT_LE(std::abs(static_cast<long double>(gains[i]) - gain), 2 * slack);
          ASSERT_LE(gains[i], before[i]);  // submodular to the last bit
        }
        before = gains;
        a.push_back((step * 5 + 2) % n);
        with.add(a.back());
        without.add(a.back());
        ASSERT_EQ(with.value(), without.value());
        ASSERT_LE(std::abs(static_cast<long double>(with.value()) - units(g, kind, a)), slack);
      }
    }
  }
}

// Algorithm 2's loss of removing i with ground set S is f(S) - f(S - i); the nearest neighbour
// gives it for any order of arrivals and departures.
TYPED_TEST(RetainedKeysIn, LossEqualsTheDefinitionWithDuplicatesAndZeroKeys) {
  for (const Similarity kind : kKinds) {
    for (const unsigned seed : {1U, 2U, 3U}) {
      const Matrix k = odd_keys(160, 4, seed);
      const reference::Rows sim_all =
          reference::similarities(reference::rows_of(k), reference_of(kind), true);
      RetainedKeys<TypeParam> kept(150, 4, kind);
      std::vector<Index> members;  // by place
      std::mt19937_64 generator(seed);
      const auto check = [&] {
        reference::Mixture g;
        for (const Index i : members) {
          g.sim.emplace_back();
          for (const Index j : members) {
            g.sim.back().push_back(sim_all[i][j]);
          }
        }
        const std::vector<Index> all = positions(0, kept.size());
        const long double whole = units(g, kind, all);
        ASSERT_LE(std::abs(static_cast<long double>(kept.value()) - whole),
                  slack_of_pair<TypeParam>(4));
        for (const Index i : all) {
          std::vector<Index> rest = all;
          rest.erase(rest.begin() + i);
          const long double loss = whole - units(g, kind, rest);
          ASSERT_LE(std::abs(static_cast<long double>(kept.loss(i)) - loss),
                    slack_of_pair<TypeParam>(4))
              << i;
        }
      };
      for (Index j = 0; j < 160; ++j) {
        kept.add(k.view().row_span(j));
        members.push_back(j);
        while (kept.size() > 24 || (kept.size() > 1 && generator() % 3 == 0)) {
          const auto size = static_cast<std::uint64_t>(kept.size());
          const bool newest = generator() % 3 == 0;
          const auto place = newest ? kept.size() - 1 : static_cast<Index>(generator() % size);
          kept.remove(place);
          members[place] = members.back();
          members.pop_back();
          ASSERT_EQ(kept.size(), static_cast<Index>(members.size()));
          if (generator() % 4 == 0) {
            check();
          }
        }
        check();
      }
    }
  }
}

// The newest is everyone's neighbour.
TYPED_TEST(RetainedKeysIn, EqualKeysBeyondOneBlock) {
  const std::vector<float> x = {1, 0};
  const std::vector<float> y = {0.6F, 0.8F};
  RetainedKeys<TypeParam> kept(400, 2, Similarity::relu);
  kept.add(x);
  for (int i = 0; i < 390; ++i) {
    kept.add(y);
  }
  EXPECT_GT(kept.loss(0), 0);
  for (Index i = 1; i < kept.size(); ++i) {
    ASSERT_EQ(kept.loss(i), 0);
  }
  while (kept.size() > 4) {
    kept.remove(kept.size() / 2);
  }
  EXPECT_EQ(kept.loss(3), 0);
}

TEST(ConcavePhi, EqualsTheDefinition) {
  constexpr double kValue = 1e-12;  // far inside the 1e-9 that is promised
  for (const auto& [alpha, beta] :
       {std::pair(0.04, 1.0), {0.5, 0.0}, {1.0, 2.0}, {0.3, 1e-6}, {0.04, 1e3}, {0.001, 1.0}}) {
    for (const bool power : {false, true}) {
      const ConcavePhi phi = power ? ConcavePhi::power(alpha, beta) : ConcavePhi::log();
      const reference::Phi slow{power, static_cast<long double>(alpha), beta};
      EXPECT_EQ(phi.at(0.0).y, 0.0);
      for (const double x : {0.0, 1e-12, 1e-3, 0.9, 1.0, 11.0, 777.0, 1e6}) {
        const auto from = phi.at(x);
        const long double y = reference::phi_value(slow, x);
        ASSERT_LE(std::abs(from.y - y), kValue * y) << alpha << " " << beta << " " << x;
        for (const double a : {0.0, 1e-9, 1e-4, 0.5, 10.0, 1e5}) {
          const long double rise = reference::phi_value(slow, static_cast<long double>(x) + a) - y;
          // The reference's own difference has the rounding of phi(x) in it.
          const long double tolerance = 1e-11L * rise + 1e-18L * y;
          ASSERT_LE(std::abs(phi.increment(from, a) - rise), tolerance)
              << power << " " << alpha << " " << beta << " " << x << " " << a;
          if (a == 0.0) {
            ASSERT_EQ(phi.increment(from, a), 0.0);
            ASSERT_EQ(phi.decrement(from, a), 0.0);
            continue;
          }
          if (a <= x) {
            const long double fall =
                y - reference::phi_value(slow, static_cast<long double>(x) - a);
            ASSERT_LE(std::abs(phi.decrement(from, a) - fall), 1e-10L * fall + 1e-18L * y)
                << power << " " << alpha << " " << beta << " " << x << " " << a;
            ASSERT_GE(phi.decrement(from, a) * (1 + 1e-10), a * phi.slope(from));
          }
          ASSERT_LE(phi.increment(from, a) * (1 - 1e-10), a * phi.slope(from));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_facility_location
