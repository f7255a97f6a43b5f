// A stream that retains tokens by facility location and attention on a machine: the launches around
// retained_kernels.hpp.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/device_tensors.hpp"
#include "attention/retained_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// The token that leaves at each position of the head, or -1, [n]; nq == n. Equal to a stream on
/// the CPU to the bit. Two launches, one wait. Memory: for each token held at a time, and each
/// sink, 8 d bytes of unit key, 16 per query head and 52 more, and 12 per position.
template <class M>
std::vector<Index> departures_on(M& machine, const HeadTensors<M>& head,
                                 const RetentionRules& rules) {
  const Index n = head.head->n();
  const Index d = head.head->d();
  std::vector<Index> out(static_cast<std::size_t>(n), -1);
  RetainTokens kernel;
  kernel.rules = rules;
  kernel.rules.kept = std::min(rules.kept, n);
  kernel.rules.sink = std::min(rules.sink, n);
  kernel.rules.window = std::min(rules.window, n - kernel.rules.sink);
  const Index first = kernel.rules.sink + kernel.rules.window;  // position of the first step
  kernel.steps = n - first;
  if (kernel.steps == 0) {
    return out;
  }
  if (rules.kept <= 0) {  // each leaves at once
    for (Index i = 0; i < kernel.steps; ++i) {
      out[static_cast<std::size_t>(first + i)] = kernel.rules.sink + i;
    }
    return out;
  }
  const Index group = rules.lambda < 1.0 ? head.head->group() : 0;
  const Index most = std::min(kernel.steps, kernel.rules.kept + 1);
  // Sinks, of which only scores know, and behind them whole tiles of members.
  kernel.sinks = group > 0 ? kernel.rules.sink : 0;
  const auto in_tiles = [](Index columns) {
    return (columns + kStreamColumns - 1) / kStreamColumns * kStreamColumns;
  };
  const Index stride = in_tiles(kernel.sinks + in_tiles(most));

  const Array<double, M> key_norms(machine, n);
  Array<double, M> units(machine, d * stride);
  units.zero();
  Array<double, M> rows(machine, PackedRows<RetainTokens::kRows>::elements(group + 1, d));
  rows.zero();
  const Array<double, M> products(machine, 2 * (group + 1) * stride);
  const Array<double, M> newest(machine, group);
  const StreamSums<M> sums(machine, group);
  const Array<double, M> norms(machine, stride);
  const Array<float, M> scores(machine, stride);
  const Array<std::int32_t, M> tokens(machine, stride);
  const Array<std::int64_t, M> neighbours(machine, stride);
  const Array<std::int64_t, M> before(machine, stride);
  const Array<std::int32_t, M> orphans(machine, stride);
  const Array<std::int32_t, M> log(machine, kernel.steps);

  kernel.d = d;
  kernel.stride = stride;
  kernel.scale = head.head->scale;
  kernel.keys = head.k.data();
  kernel.key_norms = key_norms.data();
  kernel.query_rows = head.q_rows.data();
  kernel.units = units.data();
  kernel.rows = {rows.data(), group + 1, d};
  kernel.products = products.data();
  kernel.newest = newest.data();
  kernel.softmax = sums.rows();
  kernel.norms = norms.data();
  kernel.scores = scores.data();
  kernel.tokens = tokens.data();
  kernel.neighbours = neighbours.data();
  kernel.before = before.data();
  kernel.orphans = orphans.data();
  kernel.log = log.data();
  const KeyNorms measure{head.k.data(), n, d, key_norms.data()};
  machine.launch(measure, measure.launch_blocks());
  machine.launch(kernel, 1);
  std::vector<std::int32_t> leaves(static_cast<std::size_t>(kernel.steps));
  log.get(leaves);
  std::copy(leaves.begin(), leaves.end(), out.begin() + first);
  return out;
}

}  // namespace kvbench
