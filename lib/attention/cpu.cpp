// The CPU's backend.
#include "attention/backend.hpp"
#include "attention/nearest_keys.hpp"
#include "attention/scores.hpp"
#include "attention/streams.hpp"
#include "attention/value_norms.hpp"

namespace kvbench {

namespace {

class CpuBackend final : public Backend {
 public:
  ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                                 int threads) const override {
    return kvbench::exact_attention(head, g, positions, threads);
  }
  MatrixD exact_probabilities(const KvHead& head, Index g,
                              std::span<const Index> positions) const override {
    return kvbench::exact_probabilities(head, g, positions);
  }
  std::vector<std::vector<double>> attention_sums(const KvHead& head,
                                                  Range queries) const override {
    return kvbench::attention_sums(head, queries);
  }
  void add_rows_to(const KvHead& /*head*/, std::span<SoftmaxSums> sums,
                   std::span<const std::vector<WeightedRows>> sets) const override {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      for (const WeightedRows& set : sets[i]) {
        sums[i].add(set);
      }
    }
  }
  Index batch_bytes() const override { return 0; }
  std::unique_ptr<RowSet> rows(const KvHead& head, HeadRows of,
                               std::span<const Index> rows) const override {
    return cpu_rows(of == HeadRows::keys ? head.k : head.v, rows);
  }
  WalkCounts balance_blocks(const KvHead& head, const BalanceBlocks& blocks,
                            std::span<std::int8_t> signs,
                            std::span<double> probability) const override {
    return kvbench::balance_blocks(head, blocks, signs, probability);
  }
  std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                  std::span<const Index> from) const override {
    return kvbench::nearest_keys(head, to, from);
  }
  std::unique_ptr<FacilityGains> facility_location(const KvHead& head,
                                                   std::span<const Index> ground, Similarity kind,
                                                   Index matrix_bytes) const override {
    return with_element(head.precision, [&](auto element) -> std::unique_ptr<FacilityGains> {
      return std::make_unique<FacilityLocation<decltype(element)>>(head.k, ground, kind,
                                                                   matrix_bytes);
    });
  }
  std::unique_ptr<EvictionStream> evictions(const KvHead& head,
                                            const EvictionRules& rules) const override {
    return open_eviction(head, rules);
  }
  std::unique_ptr<ReviveStream> revive(const KvHead& head, const ReviveTask& task) const override {
    return open_revival(head, task);
  }
  std::unique_ptr<RetentionStream> retention(const KvHead& head,
                                             const RetentionRules& rules) const override {
    return open_retention(head, rules);
  }
  std::unique_ptr<ClusterStream> clusters(const KvHead& head, HeadRows of,
                                          std::span<const Index> stream,
                                          double delta) const override {
    return cluster_stream(of == HeadRows::keys ? head.k : head.v, stream, delta);
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend one;
  return one;
}

}  // namespace kvbench
