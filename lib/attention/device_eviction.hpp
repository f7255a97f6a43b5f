// A stream that evicts by attention on a machine: the launch around eviction_kernels.hpp.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/device_tensors.hpp"
#include "attention/eviction_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// What goes at each position of the head, [n]; nq == n. Equal to a stream on the CPU to the bit.
/// One launch, one wait. Memory: for each token held at a time 4 d bytes of key, 16 per query head
/// and 24 more, and 32 per position.
template <class M>
std::vector<Eviction> evictions_on(M& machine, const HeadTensors<M>& head,
                                   const EvictionRules& rules) {
  const Index n = head.head->n();
  const Index d = head.head->d();
  const Index group = head.head->group();
  std::vector<Eviction> out(static_cast<std::size_t>(n));
  if (n == 0) {
    return out;
  }
  EvictTokens kernel;
  kernel.rules = rules;
  kernel.rules.kept = std::min(rules.kept, n);
  kernel.rules.window = std::min(rules.window, n);
  kernel.rules.sink = std::min(rules.sink, n);
  const Index most = std::min(n, kernel.rules.sink + kernel.rules.kept + kernel.rules.window + 1);
  const Index stride = (most + kStreamColumns - 1) / kStreamColumns * kStreamColumns;

  Array<float, M> columns(machine, d * stride);
  columns.zero();
  Array<double, M> queries(machine, PackedRows<EvictTokens::kRows>::elements(group, d));
  queries.zero();
  const Array<double, M> logits(machine, 2 * group * stride);
  const Array<double, M> newest(machine, group);
  const StreamSums<M> sums(machine, group);
  const Array<float, M> scores(machine, stride);
  const Array<std::int32_t, M> tokens(machine, stride);
  const Array<HeldSlot, M> held(machine, 2 * stride);
  const Array<Eviction, M> log(machine, n);

  kernel.n = n;
  kernel.d = d;
  kernel.stride = stride;
  kernel.scale = head.head->scale;
  kernel.keys = head.k.data();
  kernel.query_rows = head.q_rows.data();
  kernel.columns = columns.data();
  kernel.queries = {queries.data(), group, d};
  kernel.logits = logits.data();
  kernel.newest = newest.data();
  kernel.softmax = sums.rows();
  kernel.scores = scores.data();
  kernel.tokens = tokens.data();
  kernel.held = held.data();
  kernel.log = log.data();
  machine.launch(kernel, 1);
  log.get(out);
  return out;
}

}  // namespace kvbench
