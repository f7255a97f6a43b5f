// A backend that counts what it is asked and asks the CPU: what methods and the replay leave to a
// backend shows without a GPU.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "attention/backend.hpp"
#include "attention/streams.hpp"

namespace kvbench::testing_backend {

struct Calls {
  std::atomic<int> opened = 0, truths = 0, probabilities = 0, sums = 0, pieces = 0, rows = 0,
                   centers = 0, clusters = 0, norms = 0, moments = 0, walks = 0, nearest = 0,
                   facility = 0, evictions = 0, revivals = 0, retentions = 0, streams = 0;
};

class CountingRows final : public RowSet {
 public:
  CountingRows(std::unique_ptr<RowSet> rows, Calls& calls) : rows_(std::move(rows)), calls_(calls) {
    ++calls_.rows;
  }
  Index count() const override { return rows_->count(); }
  KCenter k_center(Index k, Index first) const override {
    ++calls_.centers;
    return rows_->k_center(k, first);
  }
  Clusters online_clusters(double delta, Index max_clusters) const override {
    ++calls_.clusters;
    return rows_->online_clusters(delta, max_clusters);
  }
  std::vector<double> norms() const override {
    ++calls_.norms;
    return rows_->norms();
  }
  RowMoments moments() const override {
    ++calls_.moments;
    return rows_->moments();
  }

 private:
  std::unique_ptr<RowSet> rows_;
  Calls& calls_;
};

class CountingBackend : public Backend {
 public:
  explicit CountingBackend(Calls& calls) : calls_(calls) { ++calls_.opened; }

  ExactAttention exact_attention(const KvHead& head, Index g, std::span<const Index> positions,
                                 int threads) const override {
    ++calls_.truths;
    return cpu_backend().exact_attention(head, g, positions, threads);
  }
  MatrixD exact_probabilities(const KvHead& head, Index g,
                              std::span<const Index> positions) const override {
    ++calls_.probabilities;
    return cpu_backend().exact_probabilities(head, g, positions);
  }
  std::vector<std::vector<double>> attention_sums(const KvHead& head,
                                                  Range queries) const override {
    ++calls_.sums;
    return cpu_backend().attention_sums(head, queries);
  }
  void add_rows_to(const KvHead& head, std::span<SoftmaxSums> sums,
                   std::span<const std::vector<WeightedRows>> pieces) const override {
    for (const auto& of_one : pieces) {
      calls_.pieces += static_cast<int>(of_one.size());
    }
    cpu_backend().add_rows_to(head, sums, pieces);
  }
  Index batch_bytes() const override { return 0; }
  std::unique_ptr<RowSet> rows(const KvHead& head, HeadRows of,
                               std::span<const Index> rows) const override {
    return std::make_unique<CountingRows>(cpu_backend().rows(head, of, rows), calls_);
  }
  WalkCounts balance_blocks(const KvHead& head, const BalanceBlocks& blocks,
                            std::span<std::int8_t> signs,
                            std::span<double> probability) const override {
    ++calls_.walks;
    return cpu_backend().balance_blocks(head, blocks, signs, probability);
  }
  std::vector<Index> nearest_keys(const KvHead& head, std::span<const Index> to,
                                  std::span<const Index> from) const override {
    ++calls_.nearest;
    return cpu_backend().nearest_keys(head, to, from);
  }
  std::unique_ptr<FacilityGains> facility_location(const KvHead& head,
                                                   std::span<const Index> ground, Similarity kind,
                                                   Index matrix_bytes) const override {
    ++calls_.facility;
    return cpu_backend().facility_location(head, ground, kind, matrix_bytes);
  }
  std::unique_ptr<EvictionStream> evictions(const KvHead& head,
                                            const EvictionRules& rules) const override {
    ++calls_.evictions;
    return cpu_backend().evictions(head, rules);
  }
  std::unique_ptr<ReviveStream> revive(const KvHead& head, const ReviveTask& task) const override {
    ++calls_.revivals;
    return cpu_backend().revive(head, task);
  }
  std::unique_ptr<RetentionStream> retention(const KvHead& head,
                                             const RetentionRules& rules) const override {
    ++calls_.retentions;
    return cpu_backend().retention(head, rules);
  }
  std::unique_ptr<ClusterStream> clusters(const KvHead& head, HeadRows of,
                                          std::span<const Index> stream,
                                          double delta) const override {
    ++calls_.streams;
    return cpu_backend().clusters(head, of, stream, delta);
  }

 private:
  Calls& calls_;
};

}  // namespace kvbench::testing_backend
