// top_places on a machine: the launches around top_k_kernels.hpp.
#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "attention/top_k_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Equal to the CPU's, for any number of scores. 18 launches; the host waits once. Memory: scores
/// and places.
template <class M>
std::vector<Index> top_places_on(M& machine, std::span<const double> scores, Index count) {
  const auto m = static_cast<Index>(scores.size());
  std::vector<Index> out(static_cast<std::size_t>(count));
  if (count == 0 || count == m) {
    std::iota(out.begin(), out.end(), Index{0});
    return out;
  }
  const Array<double, M> resident(machine, scores);
  Array<std::int64_t, M> counts(machine, Index{TopDigits::kCount} * TopDigits::kValues);
  Array<TopCut, M> cuts(machine, TopDigits::kCount + 1);
  counts.zero();
  const TopCut whole{0, count};
  cuts.put(std::span(&whole, 1));
  for (int pass = 0; pass < TopDigits::kCount; ++pass) {
    const CountDigits digits{resident.data(), m, cuts.data(), counts.data(), pass};
    machine.launch(digits, digits.blocks());
    machine.launch(PickDigit{counts.data(), cuts.data(), pass}, 1);
  }
  const TopTiles tiles{resident.data(), m, cuts.data() + TopDigits::kCount};
  const Array<TakenCount, M> taken(machine, tiles.blocks());
  const Array<Index, M> places(machine, count);
  machine.launch(CountTaken{tiles, taken.data()}, tiles.blocks());
  machine.launch(WriteTaken{tiles, taken.data(), places.data()}, tiles.blocks());
  places.get(out);
  return out;
}

}  // namespace kvbench
