// One unit's shared part (the truth, the sums over sinks and recent tokens) and one job on it:
// compress, attend, judge. Everything that a method claims is counted again here.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "attention/estimator.hpp"
#include "attention/exact.hpp"
#include "replay/job_result.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Where the windows of the prefill protocol lie in n tokens.
struct Windows {
  Range sink;         ///< [0, sink)
  Range middle;       ///< what is compressed; empty where the windows meet
  Range recent;       ///< the rest
  Range scoring;      ///< positions of queries that methods may score with
  Index queries = 0;  ///< evaluated: the last min(queries, nq)
};

Windows windows_of(const ReplayOptions& options, Index n, Index nq);

/// A KV head as methods see it: what a survey of heads that share a budget needs, and no more.
class HeadInput {
 public:
  /// On the device that `open` gives; null: on the CPU.
  HeadInput(const Plan& plan, const Unit& unit, const OpenDevice& open);
  HeadInput(const Plan& plan, const Unit& unit) : HeadInput(plan, unit, plan.open_device) {}
  HeadInput(const HeadInput&) = delete;  // the score book points into the head
  HeadInput& operator=(const HeadInput&) = delete;

  const Plan& plan() const { return plan_; }
  const Unit& unit() const { return unit_; }
  const KvHead& head() const { return head_; }
  const HeadId& id() const { return id_; }
  const Windows& windows() const { return windows_; }
  const std::vector<Index>& middle() const { return middle_; }
  /// The head on the plan's device; null on the CPU.
  const DeviceHead* device() const { return device_.get(); }

  /// What an entry asks of its method here; without true mass and share.
  Task task(const Entry& entry) const;

 private:
  const Plan& plan_;
  const Unit& unit_;
  HeadId id_;
  KvHead head_;
  std::unique_ptr<DeviceHead> device_;
  Windows windows_;
  std::vector<Index> middle_;
  ScoreBook book_;
  Matrix o_proj_;                           // empty: the same of output projections
  std::shared_ptr<const RopeTables> rope_;  // null: no variant asks, or the trace has none
};

/// What is computed once per KV head and serves all methods, budgets and seeds.
class HeadContext : public HeadInput {
 public:
  HeadContext(const Plan& plan, const Unit& unit, int threads, const OpenDevice& open);
  HeadContext(const Plan& plan, const Unit& unit, int threads)
      : HeadContext(plan, unit, threads, plan.open_device) {}

  const ExactAttention& truth(Index g) const { return truth_[static_cast<std::size_t>(g)]; }
  const ValueNorms& norms() const { return norms_; }
  const SoftmaxSums& base(Index g) const { return base_[static_cast<std::size_t>(g)]; }
  const std::vector<double>& group_mass() const { return group_mass_; }

 private:
  std::vector<ExactAttention> truth_;  // every query head of the group
  ValueNorms norms_;
  std::vector<MatrixD> queries_;
  std::vector<SoftmaxSums> base_;  // the sums point into the queries
  std::vector<double> group_mass_;
};

/// Bytes that a budget of `rho` gives for a middle of `full` bytes: floor(rho * full).
Index budget_bytes(double rho, Index full);

/// Throws std::logic_error where what a method returned breaks the contract: tokens out of order or
/// not in the task, weights of a wrong number, negative or not finite, made entries not finite or
/// of a wrong shape.
void check_compressed(const Compressed& result, const Task& task);

/// A head's share of a budget, or what kept it from getting one.
struct ShareOrError {
  Share share;
  std::exception_ptr error;
};

/// Runs one job. `share` for methods whose scope is wider than a head, else null. Never throws for
/// what a method does: that becomes the rows' status. Throws IoError where the device fails.
JobResult run_job(const HeadContext& context, const Entry& entry,
                  const ShareOrError* share = nullptr);

/// Most bytes that one unit needs beside its jobs, and that one job needs; for --memory-limit.
struct MemoryNeed {
  std::uint64_t unit = 0;
  std::uint64_t per_thread = 0;
};
MemoryNeed memory_need(const LayerMeta& layer, Index queries);

}  // namespace kvbench
