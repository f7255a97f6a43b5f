// Rows on a machine: DeviceRows by the drivers of this room. The CUDA build makes one of them on a
// CudaMachine, tests on a HostMachine.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "attention/device_cover.hpp"
#include "attention/device_kcenter.hpp"
#include "attention/device_rows.hpp"
#include "attention/rows_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// DeviceRows::norms of `rows` [n, d] in the machine's memory. Memory O(n).
template <class M>
std::vector<double> row_norms_on(M& machine, const float* rows, Index n, Index d) {
  const Array<double, M> norms(machine, n);
  const RowNorms kernel{rows, n, d, norms.data()};
  machine.launch(kernel, kernel.launch_blocks());
  std::vector<double> out(static_cast<std::size_t>(n));
  norms.get(out);
  return out;
}

/// DeviceRows::moments of `rows` [n, d] in the machine's memory. Memory O(d^2), and d^2 float64 for
/// each 512 rows, as many at a time as scratch_bytes holds; the sums do not depend on it.
template <class M>
RowMoments row_moments_on(M& machine, const float* rows, Index n, Index d) {
  const Index entries = d * d;
  const Index chunks = (n + ChunkCovariance::kRows - 1) / ChunkCovariance::kRows;
  const auto room = static_cast<Index>(machine.scratch_bytes() / sizeof(double));
  const Index at_once = std::clamp<Index>(room / entries, 1, chunks);
  const Array<double, M> mean(machine, d);
  const Array<double, M> sums(machine, at_once * entries);
  Array<double, M> total(machine, entries);
  total.zero();
  const ColumnMeans means{rows, n, d, mean.data()};
  machine.launch(means, means.launch_blocks());
  for (Index first = 0; first < chunks; first += at_once) {
    const Index count = std::min(at_once, chunks - first);
    const ChunkCovariance chunk{rows, mean.data(), n, d, first, count, sums.data()};
    machine.launch(chunk, chunk.launch_blocks());
    const AddChunks add{sums.data(), count, d, total.data()};
    machine.launch(add, add.launch_blocks());
  }
  RowMoments out;
  out.mean.resize(static_cast<std::size_t>(d));
  out.covariance.resize(static_cast<std::size_t>(entries));
  mean.get(out.mean);
  total.get(out.covariance);
  for (double& x : out.covariance) {
    x /= static_cast<double>(n);
  }
  return out;
}

template <class M>
class DeviceRowsOn final : public DeviceRows {
 public:
  DeviceRowsOn(M machine, MatrixView rows)
      : machine_(std::move(machine)),
        n_(rows.rows),
        d_(rows.cols),
        rows_(machine_, std::span(rows.data, static_cast<std::size_t>(n_ * d_))) {}

  KCenter k_center(Index k) const override {
    return k_center_on(machine_, rows_.data(), d_, all(), k, 0);
  }
  Cover delta_cover(double delta, Index max_clusters) const override {
    return delta_cover_on(machine_, rows_.data(), d_, all(), delta, max_clusters);
  }
  std::vector<double> norms() const override {
    return row_norms_on(machine_, rows_.data(), n_, d_);
  }
  RowMoments moments() const override { return row_moments_on(machine_, rows_.data(), n_, d_); }

 private:
  std::vector<Index> all() const {
    std::vector<Index> out(static_cast<std::size_t>(n_));
    std::iota(out.begin(), out.end(), Index{0});
    return out;
  }

  mutable M machine_;  // launching changes nothing that two tasks could see
  Index n_;
  Index d_;
  Array<float, M> rows_;
};

}  // namespace kvbench
