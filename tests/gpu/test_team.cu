// A block as a team against a team of one: the same results, to every thread, whatever is called
// after what.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "gpu/team.cuh"
#include "on_device.hpp"

namespace kvbench::gpu {
namespace {

constexpr int kResults = 30;
constexpr Index kRows = 8;  // of products: more than one tile
constexpr Index kDepth = 3;

// What the members share.
struct Shared {
  const double* x;  // [n]
  Index n;
  Index* list;       // [n]
  double* sums;      // [kRows]
  double* products;  // [kRows, whole_panels(n)]
};

// Every function twice in a row, with other arguments. results [kResults], the member's own.
template <class Team>
KVB_HD void call_all(const Team& team, const Shared& s, double* results) {
  const auto put = [&](double x) { *results++ = x; };
  for (int round = 0; round < 2; ++round) {
    const Index n = round == 0 ? s.n : s.n / 2;
    const auto x = [&](Index i) { return s.x[i]; };
    // One type for both calls, so that they share their variables.
    const auto each_of = [](Index k) { return [k](Index i) { return i % k == 0; }; };
    const Index count = team.collect(n, each_of(2), s.list);
    const Index thirds = team.collect(n, each_of(3), s.list);
    double places = 0.0;
    for (Index i = 0; i < thirds; ++i) {
      places += static_cast<double>(s.list[i]);
    }
    put(static_cast<double>(count));
    put(static_cast<double>(thirds));
    put(places);
    const double sum = team.sum(n, x);
    const double half = team.sum(n / 2, x);
    put(sum);
    put(half);
    const double top = team.max(n, x);
    const double top_of_half = team.max(n / 2, x);
    put(top);
    put(top_of_half);
    const Found largest = team.largest(n, x);
    const Found smallest = team.smallest(n, x);
    put(largest.value + static_cast<double>(largest.index));
    put(smallest.value - static_cast<double>(smallest.index));
    if (n > 0) {
      const auto bound = [&](Index i) { return s.x[i] - static_cast<double>(i % 4); };
      const auto last = [&](Index i) { return n - i; };  // the tie goes to the last
      put(static_cast<double>(team.smallest_bounded(n, bound, x, last).found.index));
    }
    team.sums(
        kRows, n, [&](Index r, Index i) { return s.x[i] * static_cast<double>(r); }, s.sums);
    put(s.sums[0] + s.sums[kRows - 1]);
    team.once([] {});  // all have read before one writes
    team.once([&] { s.sums[0] = 7.0; });
    put(s.sums[0]);
    team.each(n, [&](Index i) { s.list[i] = i * i; });
    put(n > 0 ? static_cast<double>(s.list[n - 1]) : 0.0);
    // Columns of kDepth whole numbers; the rows are x's first ones. In whole panels.
    const Index columns = n / (kDepth * kPanel) * kPanel;
    if (s.n >= kRows * kDepth && columns > 0) {
      team.products(s.x, kRows, s.x, columns, kDepth, s.products, columns);
      put(s.products[0] + s.products[(kRows - 1) * columns + columns - 1]);
    }
    team.once([] {});
  }
}

template <int kThreads>
__global__ void call_all_kernel(Shared shared, double* results) {
  call_all(BlockTeam<kThreads>(), shared, results + threadIdx.x * kResults);
}

template <int kThreads>
void expect_equal(Index n) {
  SCOPED_TRACE(testing::Message() << "n " << n << " threads " << kThreads);
  std::vector<double> x(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) {
    x[i] = 0.1 * static_cast<double>((i * 37) % 61) - 3.0;  // values more than once
  }
  std::vector<Index> list(x.size());
  std::vector<double> sums(kRows);
  std::vector<double> products(kRows * (x.size() + kPanel));
  std::vector<double> expected(kResults);
  call_all(OneThread(), {x.data(), n, list.data(), sums.data(), products.data()}, expected.data());

  const Device device(0, 1 << 20);
  const Array<double> device_x(device, std::span<const double>(x));
  const Array<Index> device_list(device, n);
  const Array<double> device_sums(device, kRows);
  const Array<double> device_products(device, static_cast<Index>(products.size()));
  Array<double> results(device, kThreads * kResults);
  results.set_zero();
  const Shared shared{device_x.data(), n, device_list.data(), device_sums.data(),
                      device_products.data()};
  device.launch(call_all_kernel<kThreads>, 1, kThreads, shared, results.data());
  std::vector<double> got(kThreads * kResults);
  results.get(got);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(got[i]),
              std::bit_cast<std::uint64_t>(expected[i % kResults]))
        << "thread " << i / kResults << " result " << i % kResults;
  }
}

class GpuTeam : public testing_gpu::OnDevice {};

TEST_F(GpuTeam, EqualsATeamOfOne) {
  for (const Index n : {0, 1, 5, 31, 64, 100, 300, 700}) {
    expect_equal<64>(n);
    expect_equal<512>(n);
  }
}

}  // namespace
}  // namespace kvbench::gpu
