// A block's reductions on a device.
#include <algorithm>
#include <vector>

#include "gpu/block.cuh"
#include "gpu/cuda.cuh"
#include "on_device.hpp"

namespace kvbench::gpu {
namespace {

template <class T>
std::vector<T> read(const Array<T>& x) {
  std::vector<T> out(x.size());
  x.get(out);
  return out;
}

// Every thread's x and the largest, by block_reduce.
template <int kBlock>
__global__ void reduce(const double* x, double* sums, double* largest, Index* place) {
  const Index at = static_cast<Index>(blockIdx.x) * kBlock + threadIdx.x;
  const double sum = block_reduce<kBlock>(x[at], Plus());
  const double top = block_reduce<kBlock>(x[at], Max());
  const Place last = block_reduce<kBlock>(Place{x[at], at}, LargestFirst());
  const Place first = block_reduce<kBlock>(Place{x[at], at}, SmallestFirst());
  sums[at] = sum;
  largest[at] = top;
  place[at] = last.index * 1000 + first.index;
}

class GpuBlock : public testing_gpu::OnDevice {};

TEST_F(GpuBlock, ReducesForAllItsThreads) {
  const Device device(0, 1 << 20);
  constexpr int kBlock = 128;
  std::vector<double> x(2 * kBlock);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>((i * 37) % 61) - 30.0;  // values more than once
  }
  const Array<double> there(device, std::span<const double>(x));
  const Array<double> sums(device, 2 * kBlock);
  const Array<double> largest(device, 2 * kBlock);
  const Array<Index> place(device, 2 * kBlock);
  device.launch(reduce<kBlock>, 2, kBlock, there.data(), sums.data(), largest.data(), place.data());
  for (std::size_t b = 0; b < 2; ++b) {
    const auto begin = x.begin() + static_cast<Index>(b) * kBlock;
    double sum = 0.0;  // whole numbers: any order gives the same
    for (auto it = begin; it != begin + kBlock; ++it) {
      sum += *it;
    }
    const Index last = std::max_element(begin, begin + kBlock) - x.begin();
    const Index first = std::min_element(begin, begin + kBlock) - x.begin();
    for (std::size_t i = b * kBlock; i < (b + 1) * kBlock; ++i) {
      ASSERT_EQ(read(sums)[i], sum);
      ASSERT_EQ(read(largest)[i], x[last]);
      ASSERT_EQ(read(place)[i], last * 1000 + first);
    }
  }
}

}  // namespace
}  // namespace kvbench::gpu
