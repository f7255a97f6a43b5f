// A job of the stream protocol on one KV head. Tokens are appended to the method's cache one by
// one. At each evaluated step the newest query attends to what is held. A method's own figures are
// never trusted.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attention/truth.hpp"
#include "attention/value_norms.hpp"
#include "replay/job.hpp"

namespace kvbench {

/// A KV head with what all its jobs share: exact attention at every evaluated step. `head`: index
/// into unit().q_heads. `step`: index into steps().
class StreamContext : public HeadInput {
 public:
  /// The trace must store all queries of the head.
  StreamContext(const Plan& plan, const Unit& unit, int threads, std::optional<KvHead> head = {});

  /// Number of replayed query heads.
  std::size_t heads() const { return unit().q_heads.size(); }
  /// Position of a replayed query head in its group.
  Index in_group(std::size_t head) const {
    return unit().q_heads[head] - id().kv_head * this->head().group();
  }
  /// Evaluated positions, ascending.
  const std::vector<Index>& steps() const { return steps_; }
  /// Number of steps before the last --queries. A row's error figures are of the others.
  std::size_t early() const { return early_; }
  /// Exact attention at the last --queries positions.
  const ExactAttention& truth(std::size_t head) const { return truth_[head]; }
  const ValueNorms& norms() const { return norms_; }
  /// Exact output [dv].
  std::span<const double> exact_output(std::size_t head, std::size_t step) const;

 private:
  std::vector<Index> steps_;
  std::size_t early_ = 0;
  std::vector<MatrixD> early_output_;
  std::vector<ExactAttention> truth_;
  ValueNorms norms_;
};

/// Runs one job. An exception of the method becomes the rows' status. Throws as run_guarded().
JobResult run_stream_job(const StreamContext& context, const Entry& entry);

/// As prefill_memory_need(), for streams.
MemoryNeed stream_memory_need(const LayerMeta& layer, const ReplayOptions& options);

}  // namespace kvbench
