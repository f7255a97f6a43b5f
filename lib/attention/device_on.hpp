// A head on a machine: DeviceHead by the drivers of this room. The CUDA build makes one of them on
// a CudaMachine, tests on a HostMachine.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attention/device.hpp"
#include "attention/device_cover.hpp"
#include "attention/device_coverage.hpp"
#include "attention/device_dense.hpp"
#include "attention/device_eviction.hpp"
#include "attention/device_kcenter.hpp"
#include "attention/device_lists.hpp"
#include "attention/device_merge.hpp"
#include "attention/device_quantize.hpp"
#include "attention/device_retained.hpp"
#include "attention/device_revive.hpp"
#include "attention/device_similar.hpp"
#include "attention/device_tensors.hpp"
#include "attention/device_top_k.hpp"
#include "attention/device_walk.hpp"
#include "attention/fast_attention.hpp"
#include "attention/fast_similarity.hpp"
#include "attention/fast_walk.hpp"

namespace kvbench {

template <class M>
class DeviceHeadOn final : public DeviceHead {
 public:
  /// The head must outlive the object.
  DeviceHeadOn(M machine, const KvHead& head, GpuMath math = GpuMath::exact)
      : machine_(std::move(machine)), tensors_(machine_, head) {
    if (math == GpuMath::fast) {
      fast_.emplace(machine_, tensors_);
    }
  }

  ExactAttention exact_attention(Index g, std::span<const Index> positions) const override {
    return fast_ ? exact_attention_fast(machine_, tensors_, *fast_, g, positions)
                 : exact_attention_on(machine_, tensors_, g, positions);
  }
  MatrixD exact_probabilities(Index g, std::span<const Index> positions) const override {
    return exact_probabilities_on(machine_, tensors_, g, positions);
  }
  std::vector<std::vector<double>> attention_sums(Range queries) const override {
    return fast_ ? attention_sums_fast(machine_, tensors_, *fast_, queries)
                 : attention_sums_on(machine_, tensors_, queries);
  }
  PartialSums partial_sums(const MatrixD& queries, const SumPiece& piece) const override {
    return fast_ ? partial_sums_fast(machine_, tensors_, *fast_, queries, piece)
                 : partial_sums_on(machine_, tensors_, queries, piece);
  }
  std::vector<PartialSums> list_sums(const MatrixD& queries,
                                     std::span<const ListPiece> lists) const override {
    return list_sums_on(machine_, tensors_, queries, lists);
  }
  KCenter k_center(MatrixView points, std::span<const Index> rows, Index k,
                   Index first) const override {
    return with_resident(points, [&](const float* resident) {
      return k_center_on(machine_, resident, points.cols, rows, k, first);
    });
  }
  Cover delta_cover(MatrixView points, std::span<const Index> rows, double delta,
                    Index max_clusters) const override {
    return with_resident(points, [&](const float* resident) {
      return delta_cover_on(machine_, resident, points.cols, rows, delta, max_clusters);
    });
  }
  WalkCounts balance_blocks(const BalanceBlocks& blocks, std::span<std::int8_t> signs,
                            std::span<double> probability) const override {
    return fast_ ? balance_blocks_fast(machine_, tensors_, fast_->k, fast_->v, blocks, signs,
                                       probability)
                 : balance_blocks_on(machine_, tensors_, blocks, signs, probability);
  }
  std::vector<Eviction> evictions(const EvictionRules& rules) const override {
    return evictions_on(machine_, tensors_, rules);
  }
  std::vector<Index> departures(const RetentionRules& rules) const override {
    return departures_on(machine_, tensors_, rules);
  }
  ReviveLog revive(const ReviveRules& rules) const override {
    return revive_on(machine_, tensors_, rules);
  }
  std::vector<Index> most_similar(std::span<const Index> to,
                                  std::span<const Index> from) const override {
    return fast_ ? most_similar_fast(machine_, tensors_, fast_->k, to, from)
                 : most_similar_on(machine_, tensors_, to, from);
  }
  std::unique_ptr<DeviceCoverage> coverage(const UnitKeys& units, Index n,
                                           Similarity kind) const override {
    if (fast_) {
      return std::make_unique<FastCoverageOn<M>>(machine_, units, n, kind);
    }
    return std::make_unique<CoverageOn<M>>(machine_, units, n, kind);
  }
  std::vector<Index> top_places(std::span<const double> scores, Index count) const override {
    return top_places_on(machine_, scores, count);
  }
  Matrix read_back(MatrixView from, std::span<const Index> tokens,
                   const CodeFormat& format) const override {
    return with_resident(from, [&](const float* resident) {
      return read_back_on(machine_, resident, from.cols, tokens, format);
    });
  }
  Matrix merge_rows(MatrixView from, const RowMerge& merge, DType type) const override {
    return with_resident(from, [&](const float* resident) {
      return merge_rows_on(machine_, resident, from.cols, merge, type);
    });
  }

 private:
  // `use` of where the rows lie in the machine's memory: the head's keys or values, or else a copy
  // for the call.
  template <class Use>
  auto with_resident(MatrixView rows, Use use) const {
    const KvHead& head = *tensors_.head;
    if (rows.data == head.k.data()) {
      return use(tensors_.k.data());
    }
    if (rows.data == head.v.data()) {
      return use(tensors_.v.data());
    }
    const Array<float, M> copy(
        machine_, std::span(rows.data, static_cast<std::size_t>(rows.rows * rows.cols)));
    return use(copy.data());
  }

  mutable M machine_;  // launching changes nothing that two jobs could see
  HeadTensors<M> tensors_;
  std::optional<FastScales> fast_;  // of GpuMath::fast
};

}  // namespace kvbench
