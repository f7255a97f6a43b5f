// A job of the prefill protocol on one KV head: compress, attend, measure. A method's own figures
// are never trusted.
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "attention/backend.hpp"
#include "attention/value_norms.hpp"
#include "replay/head_input.hpp"
#include "replay/job_result.hpp"

namespace kvbench {

/// A head's share of a common budget, or the exception of the method that was to divide it.
struct ShareOrError {
  Share share;
  std::exception_ptr error;
};

/// A KV head with what all its jobs share. `g`: query head within the group.
class HeadContext : public HeadInput {
 public:
  HeadContext(const Plan& plan, const Unit& unit, int threads, std::optional<KvHead> head = {});

  /// Exact attention of the evaluated queries.
  const ExactAttention& truth(Index g) const { return truth_[g]; }
  double sink_mass(Index g) const { return sink_mass_[g]; }  ///< metrics/memory.hpp
  const ValueNorms& norms() const { return norms_; }
  /// Softmax sums of the evaluated queries over sinks and recent tokens.
  const SoftmaxSums& base(Index g) const { return base_[g]; }
  /// The entry's task with what a job adds: the share, or the exception of its division, and the
  /// exact attention of the group where the method sees it. Must not outlive the object.
  Task job_task(const Entry& entry, const ShareOrError* share) const;

 private:
  // By query head of the group.
  std::vector<ExactAttention> truth_;
  std::vector<double> sink_mass_;
  ValueNorms norms_;
  std::vector<MatrixD> queries_;
  std::vector<SoftmaxSums> base_;   // the sums point into the queries
  std::vector<double> group_mass_;  // [n]: exact attention of each token, mean over the group
};

/// Throws std::logic_error(what) unless `good`.
void require(bool good, const char* what);

/// Throws std::logic_error if a method's result violates the contract (algorithms/contract.hpp):
/// tokens out of order or not in the task; a wrong number of weights; weights that are negative or
/// not finite; made entries that are not finite or of a wrong shape; impossible byte counts.
void check_compressed(const Compressed& result, const Task& task);

/// Runs one job. `share`: null if the scope is a head. An exception of the method becomes the rows'
/// status. Throws as run_guarded().
JobResult run_job(const HeadContext& context, const Entry& entry,
                  const ShareOrError* share = nullptr);

/// Returns the memory of a head and its jobs, without methods' scratch and what plan options add
/// (memory_need).
MemoryNeed prefill_memory_need(const LayerMeta& layer, const ReplayOptions& options);

}  // namespace kvbench
