// A head on a machine: DeviceHead by the drivers of this room. The CUDA build makes one of them on
// a CudaMachine, tests on a HostMachine.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention/device.hpp"
#include "attention/device_coverage.hpp"
#include "attention/device_dense.hpp"
#include "attention/device_kcenter.hpp"
#include "attention/device_lists.hpp"
#include "attention/device_similar.hpp"
#include "attention/device_tensors.hpp"
#include "attention/device_walk.hpp"

namespace kvbench {

template <class M>
class DeviceHeadOn final : public DeviceHead {
 public:
  /// The head must outlive the object.
  DeviceHeadOn(M machine, const KvHead& head)
      : machine_(std::move(machine)), tensors_(machine_, head) {}

  ExactAttention exact_attention(Index g, std::span<const Index> positions) const override {
    return exact_attention_on(machine_, tensors_, g, positions);
  }
  MatrixD exact_probabilities(Index g, std::span<const Index> positions) const override {
    return exact_probabilities_on(machine_, tensors_, g, positions);
  }
  std::vector<std::vector<double>> attention_sums(Range queries) const override {
    return attention_sums_on(machine_, tensors_, queries);
  }
  PartialSums partial_sums(const MatrixD& queries, const SumPiece& piece) const override {
    return partial_sums_on(machine_, tensors_, queries, piece);
  }
  std::vector<PartialSums> list_sums(const MatrixD& queries,
                                     std::span<const ListPiece> lists) const override {
    return list_sums_on(machine_, tensors_, queries, lists);
  }
  KCenter k_center(MatrixView points, std::span<const Index> rows, Index k,
                   Index first) const override {
    const KvHead& head = *tensors_.head;
    if (points.data == head.k.data()) {
      return k_center_on(machine_, tensors_.k.data(), points.cols, rows, k, first);
    }
    if (points.data == head.v.data()) {
      return k_center_on(machine_, tensors_.v.data(), points.cols, rows, k, first);
    }
    const Array<float, M> copy(
        machine_, std::span(points.data, static_cast<std::size_t>(points.rows * points.cols)));
    return k_center_on(machine_, copy.data(), points.cols, rows, k, first);
  }
  WalkCounts balance_blocks(const BalanceBlocks& blocks, std::span<std::int8_t> signs,
                            std::span<double> probability) const override {
    return balance_blocks_on(machine_, tensors_, blocks, signs, probability);
  }
  std::vector<Index> most_similar(std::span<const Index> to,
                                  std::span<const Index> from) const override {
    return most_similar_on(machine_, tensors_, to, from);
  }
  std::unique_ptr<DeviceCoverage> coverage(const UnitKeys& units, Index n,
                                           Similarity kind) const override {
    return std::make_unique<CoverageOn<M>>(machine_, units, n, kind);
  }

 private:
  mutable M machine_;  // launching changes nothing that two jobs could see
  HeadTensors<M> tensors_;
};

}  // namespace kvbench
