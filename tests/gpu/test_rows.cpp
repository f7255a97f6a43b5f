// Rows in a device's memory against the CPU's, to the bit.
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <thread>

#include "gpu/device.hpp"
#include "gpu/rows.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_rows {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::uint64_t> bits(const std::vector<double>& x) {
  std::vector<std::uint64_t> out;
  for (const double e : x) {
    out.push_back(std::bit_cast<std::uint64_t>(e));
  }
  return out;
}

void expect_same(const KCenter& a, const KCenter& b) {
  EXPECT_EQ(a.centers, b.centers);
  EXPECT_EQ(bits(a.radius), bits(b.radius));
  EXPECT_EQ(a.nearest, b.nearest);
  EXPECT_EQ(bits(a.squared), bits(b.squared));
}

void expect_same(const Clusters& a, const Clusters& b) {
  EXPECT_EQ(a.representatives, b.representatives);
  EXPECT_EQ(a.cluster, b.cluster);
  EXPECT_EQ(bits({a.largest_join, a.smallest_open}), bits({b.largest_join, b.smallest_open}));
  EXPECT_EQ(a.complete, b.complete);
}

// All rows of a matrix, and some of them in another order from one that lies on the device.
struct Sets {
  Sets(MatrixView points, std::vector<Index> some_rows, std::size_t scratch = 1 << 20)
      : some(std::move(some_rows)),
        device(0, scratch),
        matrix(device, std::span(points.data, static_cast<std::size_t>(points.rows * points.cols))),
        all(device, points),
        part(device, matrix.data(), points.cols, some),
        cpu_all(cpu_rows(points)),
        cpu_part(cpu_rows(points, some)) {}

  std::vector<Index> some;
  gpu::Device device;
  gpu::Array<float> matrix;
  gpu::DeviceRowSet all, part;
  std::unique_ptr<RowSet> cpu_all, cpu_part;
};

std::vector<Index> every_other(Index n) {
  std::vector<Index> out;
  for (Index i = n - 1; i >= 0; i -= 2) {
    out.push_back(i);
  }
  return out;
}

// Distances at which something changes, and others.
std::vector<double> deltas(const RowSet& rows) {
  const KCenter centers = rows.k_center(3);
  std::vector<double> out{0.0, kInfinity};
  for (const double radius : centers.radius) {
    out.push_back(radius);
    out.push_back(std::nextafter(radius, 0.0));
  }
  return out;
}

void expect_equal(const RowSet& gpu, const RowSet& cpu) {
  const Index m = cpu.count();
  ASSERT_EQ(gpu.count(), m);
  for (const Index k : {Index{0}, Index{1}, Index{2}, m / 2, m, m + 3}) {
    for (const Index first : {Index{0}, m - 1}) {
      SCOPED_TRACE(testing::Message() << "k " << k << " first " << first);
      expect_same(gpu.k_center(k, first), cpu.k_center(k, first));
    }
  }
  for (const double delta : deltas(cpu)) {
    const Clusters whole = cpu.online_clusters(delta);
    const auto clusters = static_cast<Index>(whole.representatives.size());
    for (const Index max : {clusters - 1, clusters}) {
      SCOPED_TRACE(testing::Message() << "delta " << delta << " max " << max);
      expect_same(gpu.online_clusters(delta, max), cpu.online_clusters(delta, max));
    }
  }
  expect_same(gpu.online_clusters(0.7, -1), cpu.online_clusters(0.7, -1));
  expect_same(gpu.online_clusters(0.7, m + 9), cpu.online_clusters(0.7));
  EXPECT_EQ(bits(gpu.norms()), bits(cpu.norms()));
}

class GpuRows : public testing_gpu::OnDevice {};

TEST_F(GpuRows, EqualTheCpuForEveryShape) {
  struct Shape {
    Index n, d;
  };
  for (const Shape& s : {Shape{1, 1}, Shape{2, 130}, Shape{33, 7}, Shape{64, 8}, Shape{65, 9},
                         Shape{129, 16}, Shape{200, 1}, Shape{150, 33}, Shape{131, 130}}) {
    SCOPED_TRACE(testing::Message() << "n " << s.n << " d " << s.d);
    const Matrix points = odd_keys(s.n, s.d, static_cast<unsigned>(s.n + s.d));
    const Sets sets(points, every_other(s.n));
    expect_equal(sets.all, *sets.cpu_all);
    expect_equal(sets.part, *sets.cpu_part);
  }
}

TEST_F(GpuRows, NoRows) {
  const Matrix points = odd_keys(4, 3, 1);
  const Sets sets(points, {});
  EXPECT_EQ(sets.part.count(), 0);
  expect_same(sets.part.k_center(3, 0), sets.cpu_part->k_center(3));
  expect_same(sets.part.online_clusters(1.0, 5), sets.cpu_part->online_clusters(1.0, 5));
  EXPECT_TRUE(sets.part.norms().empty());
}

// Each thread has its own stream, which does not wait for another's.
TEST_F(GpuRows, AnotherThreadSeesThem) {
  const Matrix points = odd_keys(20, 3, 2);
  const std::vector<Index> some = every_other(20);
  const gpu::Device device(0, 1 << 20);
  const gpu::DeviceRowSet all(device, points);
  const auto expect_norms = [](const RowSet& gpu, const RowSet& cpu) {
    std::thread([&] { EXPECT_EQ(bits(gpu.norms()), bits(cpu.norms())); }).join();
  };
  expect_norms(all, *cpu_rows(points));
  const gpu::Array<float> matrix(device,
                                 std::span(points.data(), static_cast<std::size_t>(20 * 3)));
  device.wait();
  const gpu::DeviceRowSet part(device, matrix.data(), 3, some);
  expect_norms(part, *cpu_rows(points, some));
}

TEST_F(GpuRows, EqualRowsTieToTheLowestPlace) {
  Matrix points(140, 5);
  std::fill_n(points.data(), 140 * 5, 2.0F);
  const Sets sets(points, every_other(140));
  expect_equal(sets.all, *sets.cpu_all);
  const KCenter found = sets.all.k_center(3, 7);
  EXPECT_EQ(found.centers, (std::vector<Index>{7, 0, 1}));
}

// More representatives than the parts of one launch hold at a time, more batches than the host
// leaves unwatched, and a stream that stops long before its end.
TEST_F(GpuRows, LongStream) {
  std::mt19937_64 generator(11);
  const Matrix points = normal_matrix(4300, 3, 3.0, generator);
  const Sets sets(points, {});
  const Clusters all = sets.cpu_all->online_clusters(0.08);
  ASSERT_GT(all.representatives.size(), 2048U);
  expect_same(sets.all.online_clusters(0.08, 5000), all);
  expect_same(sets.all.online_clusters(0.08, 20), sets.cpu_all->online_clusters(0.08, 20));
  expect_same(sets.all.k_center(9, 0), sets.cpu_all->k_center(9));
}

TEST_F(GpuRows, MomentsDoNotDependOnTheScratch) {
  for (const Index d : {Index{1}, Index{33}, Index{64}, Index{70}, Index{130}}) {
    std::mt19937_64 generator(static_cast<unsigned>(d));
    Matrix points = normal_matrix(1300, d, 3.0, generator);
    for (Index i = 0; i < 1300; ++i) {
      points.row(i)[0] += 100.0F;
    }
    const Sets sets(points, every_other(1300));
    const Sets tight(points, {}, 1);
    for (const bool part : {false, true}) {
      const RowMoments cpu = (part ? sets.cpu_part : sets.cpu_all)->moments();
      const RowMoments gpu = (part ? sets.part : sets.all).moments();
      EXPECT_EQ(bits(gpu.mean), bits(cpu.mean));
      for (Index t = 0; t < d; ++t) {
        for (Index u = 0; u < d; ++u) {
          const auto at = static_cast<std::size_t>(t * d + u);
          // 1300 terms in another order: 1e-13 of the diagonal's sums, with room.
          EXPECT_TRUE(std::abs(gpu.covariance[at] - cpu.covariance[at]) <= 1e-11) << t << " " << u;
          if (u > t) {
            EXPECT_EQ(gpu.covariance[at], 0.0);
          }
        }
      }
    }
    EXPECT_EQ(bits(sets.all.moments().covariance), bits(sets.all.moments().covariance));
    EXPECT_EQ(bits(tight.all.moments().covariance), bits(sets.all.moments().covariance));
  }
}

TEST_F(GpuRows, KeepToTheMemoryThatIsPlanned) {
  const Index n = 700;
  const Index d = 40;
  std::mt19937_64 generator(3);
  const Matrix points = normal_matrix(n, d, 3.0, generator);
  const std::size_t before = testing_gpu::used_bytes();
  const auto scratch = static_cast<std::size_t>(device_rows_min_scratch(d));
  const gpu::Device device(0, scratch);
  const gpu::DeviceRowSet rows(device, points);
  const std::size_t planned = device_rows_bytes(n, d) + testing_gpu::kRounding;
  EXPECT_LE(testing_gpu::used_bytes() - before, planned);
  testing_gpu::forget_peak();
  rows.k_center(n, 0);
  testing_gpu::used_bytes();  // waits, so that what is freed does not count for the next
  rows.online_clusters(0.0, n);
  testing_gpu::used_bytes();
  rows.norms();
  testing_gpu::used_bytes();
  rows.moments();
  EXPECT_LE(testing_gpu::peak_bytes() - before, planned + device_rows_task_bytes(n, d) + scratch);
}

}  // namespace
}  // namespace kvbench::test_gpu_rows
