// The nearest keys by cosine: the CPU's function against plain loops, a machine's against it.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "attention/device_similar.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

using Indices = std::vector<Index>;

KvHead head_of(Index n, Index d, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  KvHead head;
  head.k = Matrix(n, d);
  head.v = Matrix(n, 2);
  for (Index i = 0; i < n * d; ++i) {
    head.k.data()[i] = normal(random);
  }
  // Ties and zeros: equal keys, one a multiple of another, and a zero key.
  for (Index t = 0; n > 5 && t < d; ++t) {
    head.k.row(3)[t] = head.k.row(1)[t];
    head.k.row(4)[t] = 2.0F * head.k.row(1)[t];
    head.k.row(5)[t] = 0.0F;
  }
  return head;
}

// Cosines in long double by their definition. Where the best two are within float64's rounding of
// each other either may be chosen; the first is, of equals.
void expect_nearest(const KvHead& head, const Indices& to, const Indices& from,
                    const Indices& got) {
  ASSERT_EQ(got.size(), from.size());
  const auto cosine = [&](Index a, Index b) {
    long double product = 0.0L;
    long double square = 0.0L;
    for (Index t = 0; t < head.d(); ++t) {
      product += static_cast<long double>(head.k.row(a)[t]) * head.k.row(b)[t];
      square += static_cast<long double>(head.k.row(b)[t]) * head.k.row(b)[t];
    }
    return square > 0.0L ? product / std::sqrt(square) : 0.0L;
  };
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_GE(got[i], 0);
    ASSERT_LT(got[i], static_cast<Index>(to.size()));
    const long double chosen = cosine(from[i], to[static_cast<std::size_t>(got[i])]);
    for (const Index other : to) {
      EXPECT_TRUE(cosine(from[i], other) <= chosen + 1e-12L * (1.0L + std::abs(chosen)));
    }
  }
}

TEST(MostSimilarKeys, CpuByDefinitionAndMachineToTheBit) {
  unsigned seed = 1;
  for (const Index n : {2, 7, 65, 513}) {
    for (const Index d : {1, 3, 64, 80, 256}) {
      const KvHead head = head_of(n, d, ++seed);
      for (const Index kept : {Index{1}, n / 2, n - 1}) {
        Indices to;
        Indices from;
        for (Index i = 0; i < n; ++i) {
          (i * 7 % n < kept ? to : from).push_back(i);
        }
        if (to.empty()) {
          continue;
        }
        const Indices cpu = most_similar(head, to, from);
        expect_nearest(head, to, from, cpu);
        for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
          HostMachine machine(order);
          const HeadTensors<HostMachine> tensors(machine, head);
          EXPECT_EQ(most_similar_on(machine, tensors, to, from), cpu) << n << " " << d;
        }
      }
    }
  }
}

TEST(MostSimilarKeys, TiesGoToTheLowestPlaceAndZeroKeysAreNeutral) {
  const KvHead head = head_of(40, 8, 5);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  // Keys 1, 3 and 4 point the same way; 1 and 3 are equal to the bit.
  const Indices to = {0, 3, 1, 5};
  const Indices from = {1, 3};
  EXPECT_EQ(most_similar(head, to, from), (Indices{1, 1}));
  EXPECT_EQ(most_similar_on(machine, tensors, to, from), (Indices{1, 1}));
  // To a zero key all are equally near: the first place. So is every key to zero keys alone.
  EXPECT_EQ(most_similar(head, Indices{7, 8, 9}, Indices{5}), (Indices{0}));
  EXPECT_EQ(most_similar_on(machine, tensors, Indices{7, 8, 9}, Indices{5}), (Indices{0}));
  EXPECT_EQ(most_similar_on(machine, tensors, Indices{5}, Indices{9, 1}), (Indices{0, 0}));
  EXPECT_TRUE(most_similar_on(machine, tensors, to, Indices{}).empty());
}

// More columns than a warp has lanes, all alike: the lowest place must win over the lanes.
TEST(MostSimilarKeys, TiesOverManyColumns) {
  KvHead head = head_of(100, 4, 6);
  for (Index i = 1; i < 100; ++i) {
    for (Index t = 0; t < 4; ++t) {
      head.k.row(i)[t] = head.k.row(0)[t];
    }
  }
  Indices to(90);
  std::iota(to.begin(), to.end(), Index{5});
  HostMachine machine(HostMachine::Order::backward);
  const HeadTensors<HostMachine> tensors(machine, head);
  EXPECT_EQ(most_similar_on(machine, tensors, to, Indices{0, 1, 2}), (Indices{0, 0, 0}));
  EXPECT_EQ(most_similar(head, to, Indices{0, 1, 2}), (Indices{0, 0, 0}));
}

}  // namespace
}  // namespace kvbench
