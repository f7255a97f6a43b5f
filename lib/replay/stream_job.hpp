// The stream protocol on one KV head: tokens arrive one by one, a method's cache lives through
// them, and at the evaluated steps the query that has just come attends to what is held then.
// Everything that a method claims is counted again here, at every evaluated step.
#pragma once

#include <span>
#include <vector>

#include "attention/truth.hpp"
#include "attention/value_norms.hpp"
#include "replay/job.hpp"

namespace kvbench {

/// What is computed once per KV head and serves all methods, budgets and seeds: exact attention of
/// the replayed query heads at every evaluated step.
class StreamContext : public HeadInput {
 public:
  /// The trace holds all queries of the head.
  StreamContext(const Plan& plan, const Unit& unit, int threads);

  /// How many query heads of the group are replayed; number `head` of them in the group.
  std::size_t heads() const { return unit().q_heads.size(); }
  Index in_group(std::size_t head) const {
    return unit().q_heads[head] - id().kv_head * this->head().group();
  }
  const std::vector<Index>& steps() const { return steps_; }
  /// How many steps come before the last --queries, from which a row's error figures are.
  std::size_t early() const { return early_; }
  /// By replayed query head, in the order of unit().q_heads: the last --queries positions.
  const ExactAttention& truth(std::size_t head) const { return truth_[head]; }
  const ValueNorms& norms() const { return norms_; }
  /// Exact output of a replayed query head at a step.
  std::span<const double> exact_output(std::size_t head, std::size_t step) const;

 private:
  std::vector<Index> steps_;
  std::size_t early_ = 0;
  std::vector<MatrixD> early_output_;
  std::vector<ExactAttention> truth_;
  ValueNorms norms_;
};

/// Runs one job. Never throws for what a method does: that becomes the rows' status. Throws IoError
/// where the device fails.
JobResult run_stream_job(const StreamContext& context, const Entry& entry);

/// As memory_need, for streams.
MemoryNeed stream_memory_need(const LayerMeta& layer, const ReplayOptions& options);

}  // namespace kvbench
