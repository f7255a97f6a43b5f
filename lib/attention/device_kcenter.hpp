// Greedy k-center on a machine: the launches around kcenter_kernels.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "attention/kcenter.hpp"
#include "attention/kcenter_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// k_center on a machine, equal to the CPU's to the bit. `points` [., d] lie in the machine's
/// memory. Two launches per centre; the host waits once, at the end. Memory O(m + k).
template <class M>
KCenter k_center_on(M& machine, const float* points, Index d, std::span<const Index> rows, Index k,
                    Index first) {
  const std::size_t m = rows.size();
  const auto count = static_cast<std::size_t>(std::clamp<Index>(k, 0, static_cast<Index>(m)));
  KCenter out;
  out.nearest.assign(m, 0);
  out.squared.assign(m, std::numeric_limits<double>::infinity());
  if (count == 0) {
    return out;
  }
  const auto size = static_cast<Index>(m);
  const auto most_centers = static_cast<Index>(count);
  const Array<Index, M> places(machine, rows);
  Array<Index, M> centers(machine, most_centers + 1);
  const Array<double, M> most(machine, most_centers);
  const Array<double, M> squared(machine, size);
  const Array<Index, M> nearest(machine, size);
  const Index blocks = (size + Admit::kRows - 1) / Admit::kRows;
  const Array<FarRow, M> farthest(machine, blocks);
  centers.put(std::span(&first, 1));
  const CenterState state{points,         places.data(), size,           d,
                          centers.data(), most.data(),   squared.data(), nearest.data(),
                          farthest.data()};
  for (Index number = 0; number < most_centers; ++number) {
    machine.launch(Admit{state, number}, blocks);
    machine.launch(Farthest{state, number, blocks}, 1);
  }
  out.centers.resize(count);
  out.radius.resize(count);
  centers.get(out.centers);
  most.get(out.radius);
  squared.get(out.squared);
  nearest.get(out.nearest);
  // Centres after the first radius of 0 were not admitted.
  const auto zero =
      std::find_if(out.radius.begin(), out.radius.end(), [](double x) { return !(x > 0.0); });
  if (zero != out.radius.end()) {
    out.radius.erase(zero + 1, out.radius.end());
    out.centers.resize(out.radius.size());
  }
  for (double& x : out.radius) {
    x = std::sqrt(x);
  }
  admit_lowest(out, count);
  return out;
}

}  // namespace kvbench
