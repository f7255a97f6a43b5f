// The online delta-cover as block kernels, and clustergen on it, against the CPU's, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>

#include "attention/device_cover.hpp"
#include "attention/device_on.hpp"
#include "clustergen_run.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

constexpr Index kAnyNumber = std::numeric_limits<Index>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr HostMachine::Order kOrders[] = {HostMachine::Order::forward,
                                          HostMachine::Order::backward};

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// How many clusters the CPU opened.
Index expect_equal(MatrixView points, const std::vector<Index>& rows, double delta,
                   Index max_clusters = kAnyNumber) {
  SCOPED_TRACE(testing::Message() << rows.size() << " rows of " << points.cols << ", delta "
                                  << delta << ", at most " << max_clusters);
  const Cover cpu = delta_cover(points, rows, delta, max_clusters);
  for (const auto order : kOrders) {
    HostMachine machine(order);
    const Array<float, HostMachine> resident(
        machine,
        std::span<const float>(points.data, static_cast<std::size_t>(points.rows * points.cols)));
    const Cover found =
        delta_cover_on(machine, resident.data(), points.cols, rows, delta, max_clusters);
    EXPECT_EQ(cpu.complete, found.complete);
    EXPECT_EQ(cpu.cluster, found.cluster);
    EXPECT_EQ(cpu.representatives, found.representatives);
    EXPECT_TRUE(same_bits(cpu.largest_join, found.largest_join)) << found.largest_join;
    EXPECT_TRUE(same_bits(cpu.smallest_open, found.smallest_open)) << found.smallest_open;
  }
  return static_cast<Index>(cpu.representatives.size());
}

std::vector<Index> shuffled(Index n, Index count, std::mt19937_64& generator) {
  std::vector<Index> rows = positions(0, n);
  std::shuffle(rows.begin(), rows.end(), generator);
  rows.resize(static_cast<std::size_t>(count));
  return rows;
}

// Whole numbers: ties for the nearest, distances equal to delta, equal rows, rows of zeros.
Matrix lattice(Index n, Index d, unsigned values, std::mt19937_64& generator) {
  Matrix points(n, d);
  for (Index i = 0; i < n * d; ++i) {
    points.data()[i] = static_cast<float>(generator() % values);
  }
  return points;
}

TEST(DeviceCover, SquaresAreComparedAsTheirRootsWouldBe) {
  std::mt19937_64 generator(8);
  std::uniform_real_distribution<double> exponent(-330.0, 310.0);
  std::vector<double> deltas = {0.0, 1.0, 2.0, std::sqrt(2.0), 1e-162, 5e-324, 1e154, 1.4e154};
  for (int i = 0; i < 2000; ++i) {
    deltas.push_back(std::pow(10.0, exponent(generator)));
  }
  for (const double delta : deltas) {
    const double x = largest_square_within(delta);
    ASSERT_TRUE(std::sqrt(x) <= delta) << delta;
    ASSERT_TRUE(std::isinf(x) || !(std::sqrt(std::nextafter(x, kInfinity)) <= delta)) << delta;
  }
  EXPECT_EQ(largest_square_within(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(largest_square_within(std::nan(""))));
}

TEST(DeviceCover, EqualsTheCpuForEveryShape) {
  std::mt19937_64 generator(1);
  for (const Index d : {1, 3, 7, 8, 9, 64, 80, 96, 128, 256}) {
    for (const Index m : {1, 2, 63, 64, 65, 130, 513}) {
      const Matrix points = normal_matrix(m + 3, d, 5.0, generator);
      const std::vector<Index> rows = shuffled(m + 3, m, generator);
      const double radius = k_center(points, rows, 1).radius.back();
      Index most = 0;
      for (const double relative : {0.05, 0.6, 0.9, 2.0}) {
        most = std::max(most, expect_equal(points, rows, relative * radius));
      }
      if (d > 1 && m == 513) {
        ASSERT_GT(most, 100) << "few clusters compare little";
      }
    }
  }
}

TEST(DeviceCover, TiesEqualRowsAndDeltaZero) {
  std::mt19937_64 generator(2);
  for (const Index d : {1, 2, 9}) {
    for (const Index m : {2, 31, 260, 700}) {
      const Matrix points = lattice(m, d, 4, generator);
      for (const double delta :
           {0.0, 1.0, std::sqrt(2.0), std::nextafter(2.0, 0.0), 2.0, 1e300, kInfinity}) {
        expect_equal(points, shuffled(m, m, generator), delta);
      }
    }
  }
  const Matrix same(200, 4);
  EXPECT_EQ(expect_equal(same, positions(0, 200), 0.0), 1);
}

// A nearer representative that opens later in the batch, and a tie with one from before the batch.
TEST(DeviceCover, WithinABatchTheNearestWinsAndTiesGoToTheEarlier) {
  Matrix points(70, 1);
  for (Index i = 0; i < 64; ++i) {
    points.row(i)[0] = static_cast<float>(10 * (i % 2));  // clusters at 0 and 10
  }
  const float later[] = {5.0F, 3.0F, 2.5F, 7.5F, 6.0F, 20.0F};
  std::copy_n(later, 6, points.row(64));
  const Cover cpu = delta_cover(points, positions(0, 70), 4.0);
  ASSERT_EQ((std::vector<Index>{cpu.cluster.end() - 6, cpu.cluster.end()}),
            (std::vector<Index>{2, 2, 0, 1, 2, 3}));
  expect_equal(points, positions(0, 70), 4.0);
}

TEST(DeviceCover, StopsWhereTheCpuStops) {
  std::mt19937_64 generator(3);
  const Matrix points = normal_matrix(400, 6, 5.0, generator);
  const std::vector<Index> rows = shuffled(400, 400, generator);
  const double delta = 2.0;
  const auto all = static_cast<Index>(delta_cover(points, rows, delta).representatives.size());
  ASSERT_GT(all, 150);
  for (const Index most : {Index{-1}, Index{0}, Index{1}, Index{2}, Index{31}, Index{32}, Index{63},
                           Index{64}, Index{65}, all - 1, all, all + 1}) {
    expect_equal(points, rows, delta, most);
  }
  expect_equal(points, {}, 1.0, 0);
  expect_equal(points, {}, 1.0);
}

// More clusters than the parts hold in one tile each, and more batches than go unwatched.
TEST(DeviceCover, ManyClustersAndManyBatches) {
  std::mt19937_64 generator(4);
  const Matrix points = normal_matrix(4500, 2, 1000.0, generator);
  const std::vector<Index> rows = shuffled(4500, 4500, generator);
  EXPECT_GT(expect_equal(points, rows, 1.0), 2 * kCoverParts * CoverDistances::kColumns);
  EXPECT_EQ(expect_equal(points, rows, 1.0, 70), 70);
}

// Two clusters of one part, column and distance, in different tiles.
TEST(DeviceCover, TiesBetweenTilesGoToTheEarlier) {
  constexpr Index kApart = kCoverParts * CoverDistances::kColumns;
  Matrix points(kApart + 3, 1);
  for (Index i = 0; i < kApart; ++i) {
    points.row(i)[0] = static_cast<float>(100 * i);
  }
  const float last[] = {10.0F, 99.0F, 5.0F};
  std::copy_n(last, 3, points.row(kApart));
  const std::vector<Index> rows = positions(0, kApart + 3);
  ASSERT_EQ(delta_cover(points, rows, 6.0).cluster.back(), 0);
  EXPECT_EQ(expect_equal(points, rows, 6.0), kApart + 1);
  // The same where 10 came in an earlier batch than 5.
  Matrix apart(kApart + 70, 1);
  std::copy_n(points.data(), kApart + 1, apart.data());
  apart.row(kApart + 69)[0] = 5.0F;
  ASSERT_EQ(delta_cover(apart, positions(0, kApart + 70), 6.0).cluster.back(), 0);
  EXPECT_EQ(expect_equal(apart, positions(0, kApart + 70), 6.0), kApart + 1);
}

TEST(DeviceCover, Extremes) {
  std::mt19937_64 generator(5);
  for (const double norm : {1e-43, 1e-30, 1e38}) {
    const Matrix points = normal_matrix(150, 3, norm, generator);
    for (const double relative : {0.1, 0.5, 1.0}) {
      expect_equal(points, positions(0, 150), relative * norm);
    }
  }
}

// ---------------------------------------------------------------------------- through the head

KvHead head_of(Index n, Index d, Index dv, unsigned seed) {
  HeadShape shape;
  shape.n = n;
  shape.nq = n;
  shape.d = d;
  shape.dv = dv;
  KvHead head = make_head(shape, seed);
  std::mt19937_64 generator(seed + 1);
  for (Index i = 3; i < n; i += 7) {  // equal keys, and values of zero
    const auto from = static_cast<Index>(generator() % static_cast<std::uint64_t>(i));
    std::copy_n(head.k.row(from), d, head.k.row(i));
    std::fill_n(head.v.row(i), dv, 0.0F);
  }
  return head;
}

DeviceHeadOn<HostMachine> device_of(const KvHead& head, HostMachine::Order order) {
  return {HostMachine(order), head};
}

TEST(DeviceCover, KeysValuesAndOtherRows) {
  const KvHead head = head_of(150, 8, 5, 6);
  const DeviceHeadOn<HostMachine> device(HostMachine(), head);
  std::mt19937_64 generator(7);
  const Matrix other = normal_matrix(90, 4, 3.0, generator);
  for (const MatrixView points : {head.k.view(), head.v.view(), other.view()}) {
    const std::vector<Index> rows = shuffled(points.rows, points.rows - 5, generator);
    const Cover cpu = delta_cover(points, rows, 1.5);
    const Cover found = delta_cover(points, rows, 1.5, kAnyNumber, &device);
    EXPECT_EQ(cpu.cluster, found.cluster);
    EXPECT_GT(cpu.representatives.size(), 5U);
    EXPECT_FALSE(delta_cover(points, rows, 1.5, 3, &device).complete);
    for (const Index k : {Index{1}, Index{2}, Index{9}, points.rows}) {
      EXPECT_TRUE(
          same_bits(smallest_delta(points, rows, k), smallest_delta(points, rows, k, &device)))
          << k;
    }
  }
}

void expect_same_sets(const HeldTokens& a, const HeldTokens& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_TRUE(same_set(a, b));
}

void expect_same(const Compressed& a, const Compressed& b) {
  expect_same_sets(a.held, b.held);
  ASSERT_EQ(a.denominator.has_value(), b.denominator.has_value());
  if (a.denominator) {
    expect_same_sets(a.denominator->held, b.denominator->held);
    EXPECT_EQ(a.denominator->same_keys, b.denominator->same_keys);
  }
  EXPECT_EQ(a.aux_bytes, b.aux_bytes);
  EXPECT_EQ(a.payload_bytes, b.payload_bytes);
  EXPECT_EQ(a.transient_bytes, b.transient_bytes);
  EXPECT_EQ(a.diag, b.diag);
  EXPECT_TRUE(same(a, b));
}

// What settles a size: a budget, delta, both, and a budget that holds all.
struct Setting {
  Given given;
  double budget = -1.0;  // part of the stream's pairs; none below 0
};
const Setting kSettings[] = {{{}, 0.2},
                             {{{"t", "3"}, {"share", "0.8"}}, 0.6},
                             {{{"samples", "7"}, {"t", "2"}}, 0.4},
                             {{{"delta", "2"}}, -1.0},
                             {{{"delta", "3"}, {"samples", "9"}}, -1.0},
                             {{{"delta", "4"}, {"t", "1"}}, 0.9},
                             {{{"delta", "0"}, {"t", "1"}, {"samples", "1"}}, -1.0},
                             {{}, 1.0}};

std::optional<Index> bytes(const Setting& setting, const KvHead& head, Index tokens) {
  if (setting.budget < 0.0) {
    return {};
  }
  return static_cast<Index>(setting.budget * static_cast<double>(tokens * head.pair_bytes()));
}

// The device makes the same of it; or both say how much is missing.
template <class Make>
void expect_same_outcome(const Make& make, const DeviceHead& device) {
  std::optional<Compressed> cpu;
  try {
    cpu = make(nullptr);
  } catch (const Infeasible& e) {
    try {
      make(&device);
      ADD_FAILURE() << "feasible on the device alone";
    } catch (const Infeasible& other) {
      EXPECT_EQ(e.needed_bytes(), other.needed_bytes());
    }
    return;
  }
  expect_same(*cpu, make(&device));
}

TEST(DeviceClusterGen, PrefillEqualsTheCpu) {
  const Method method = method_clustergen();
  unsigned seed = 10;
  for (const auto& [n, d, dv] : std::vector<std::tuple<Index, Index, Index>>{
           {1, 3, 2}, {2, 1, 1}, {70, 8, 5}, {200, 64, 80}, {513, 9, 4}}) {
    const KvHead head = head_of(n, d, dv, ++seed);
    std::vector<Index> tokens = positions(n / 8, n - n / 9);
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(tokens.size() / 2));
    for (const auto order : kOrders) {
      const auto device = device_of(head, order);
      for (const Setting& setting : kSettings) {
        SCOPED_TRACE(testing::Message() << "n " << n << ", setting " << (&setting - kSettings));
        const Params params(method.info.name, method.info.params, setting.given);
        const auto make = [&](const DeviceHead* on) {
          Task task{head,   tokens, bytes(setting, head, static_cast<Index>(tokens.size())),
                    {0, 0}, {},     Rng(3, {"p", 0, 0}, method.info.name)};
          task.device = on;
          return method.compress(task, params);
        };
        expect_same_outcome(make, device);
      }
    }
  }
}

// Keys that change under the device's feet: clusters come from its own.
TEST(DeviceClusterGen, TheDeviceIsWhatIsAsked) {
  const Method method = method_clustergen();
  KvHead head = head_of(120, 6, 4, 30);
  const auto device = device_of(head, HostMachine::Order::forward);
  const std::vector<Index> tokens = positions(0, 120);
  Compressed cpu[2];
  Compressed found[2];
  for (Compressed* out : {cpu, found}) {
    const DeviceHead* on = out == found ? &device : nullptr;
    Task task{head, tokens, 60 * head.pair_bytes(), {0, 0}, {}, Rng(3, {"p", 0, 0}, "clustergen")};
    StreamTask stream{head, 0, {}, Rng(3, {"p", 0, 0}, "clustergen")};
    task.device = stream.device = on;
    out[0] = method.compress(task, Params(method.info.name, method.info.params, {}));
    const auto cache =
        method.open_stream(stream, Params(method.info.name, method.info.params, {{"delta", "2"}}));
    for (const Index j : tokens) {
      cache->append(j, j);
    }
    out[1] = cache->view();
    std::fill_n(head.k.data(), 120 * 6, 0.0F);
  }
  EXPECT_GT(diag(cpu[0], "clusters"), 3);
  EXPECT_GT(diag(cpu[1], "clusters"), 3);
  expect_same(cpu[0], found[0]);
  expect_same(cpu[1], found[1]);
}

TEST(DeviceClusterGen, StreamEqualsTheCpuAtEveryMoment) {
  const Method method = method_clustergen();
  unsigned seed = 20;
  struct Size {
    Index n, d, dv, recent, sink;
  };
  for (const Size& size : std::vector<Size>{{1, 2, 2, 0, 0},
                                            {150, 8, 5, 0, 0},
                                            {150, 8, 5, 30, 0},
                                            {150, 8, 5, 30, 16},
                                            {40, 3, 1, 39, 0},
                                            {40, 3, 1, 100, 0},
                                            {40, 3, 1, 9, 31},
                                            {40, 3, 1, 0, 100}}) {
    const auto [n, d, dv, recent, sink] = size;
    const KvHead head = head_of(n, d, dv, ++seed);
    const auto device = device_of(head, HostMachine::Order::backward);
    for (const Setting& setting : kSettings) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", setting " << (&setting - kSettings));
      const Params params(method.info.name, method.info.params, setting.given);
      for (Index seen = 1; seen <= n; seen += 1 + n / 7) {
        const auto make = [&](const DeviceHead* on) {
          StreamTask task{head, recent, bytes(setting, head, n),
                          Rng(4, {"p", 0, 0}, method.info.name)};
          task.device = on;
          task.sink = sink;
          const auto cache = method.open_stream(task, params);
          for (Index j = 0; j < seen; ++j) {
            cache->append(j, j - recent >= sink ? j - recent : -1);
          }
          return cache->view();
        };
        expect_same_outcome(make, device);
      }
    }
  }
}

}  // namespace
}  // namespace kvbench
