// The heavy arithmetic on one KV head, on the CPU or on a device. Each operation has the contract
// of its own header. Selections (walks, centres, clusters, evictions, gains) have the same bits on
// every backend; sums over tokens agree to rounding.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attention/estimator.hpp"
#include "attention/facility_location.hpp"
#include "attention/online_clusters.hpp"
#include "attention/row_set.hpp"
#include "attention/softmax_balance.hpp"
#include "attention/streams.hpp"
#include "attention/truth.hpp"
#include "core/types.hpp"

namespace kvbench {

/// A head's rows: its keys or its values.
enum class HeadRows { keys, values };

/// Thread-safe. `head`: the head that a device's backend was opened for; any head on the CPU.
/// Errors: IoError if a device fails or its memory does not suffice.
class Backend {
 public:
  virtual ~Backend() = default;

  /// attention/truth.hpp.
  virtual ExactAttention exact_attention(const KvHead& head, Index g,
                                         std::span<const Index> positions, int threads) const = 0;
  virtual MatrixD exact_probabilities(const KvHead& head, Index g,
                                      std::span<const Index> positions) const = 0;
  /// attention/scores.hpp.
  virtual std::vector<std::vector<double>> attention_sums(const KvHead& head,
                                                          Range queries) const = 0;

  /// attention/estimator.hpp: adds sets[i] to sums[i], which has queries of the head.
  virtual void add_rows_to(const KvHead& head, std::span<SoftmaxSums> sums,
                           std::span<const std::vector<WeightedRows>> sets) const = 0;
  /// Bytes of rows per call of add_rows_to at which it is fastest; 0: add each set on its own.
  virtual Index batch_bytes() const = 0;

  /// Rows `rows` (which must outlive the set) of the head's keys or values.
  virtual std::unique_ptr<RowSet> rows(const KvHead& head, HeadRows of,
                                       std::span<const Index> rows) const = 0;
  /// attention/softmax_balance.hpp.
  virtual WalkCounts balance_blocks(const KvHead& head, const BalanceBlocks& blocks,
                                    std::span<std::int8_t> signs,
                                    std::span<double> probability) const = 0;
  /// attention/nearest_keys.hpp.
  virtual std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                          std::span<const Index> from) const = 0;
  /// attention/facility_location.hpp: M = the keys of `ground`.
  virtual std::unique_ptr<FacilityGains> facility_location(const KvHead& head,
                                                           std::span<const Index> ground,
                                                           Similarity kind,
                                                           Index matrix_bytes) const = 0;

  /// streams/eviction.hpp, over all positions of the head; nq == n.
  virtual std::unique_ptr<EvictionStream> evictions(const KvHead& head,
                                                    const EvictionRules& rules) const = 0;
  /// streams/revival.hpp. The task's hashes must outlive the stream.
  virtual std::unique_ptr<ReviveStream> revive(const KvHead& head,
                                               const ReviveTask& task) const = 0;
  /// streams/retention.hpp, over all positions of the head; nq == n.
  virtual std::unique_ptr<RetentionStream> retention(const KvHead& head,
                                                     const RetentionRules& rules) const = 0;
  /// attention/online_clusters.hpp: rows `stream` of the head's keys or values, in that order.
  virtual std::unique_ptr<ClusterStream> clusters(const KvHead& head, HeadRows of,
                                                  std::span<const Index> stream,
                                                  double delta) const = 0;
};

const Backend& cpu_backend();

}  // namespace kvbench
