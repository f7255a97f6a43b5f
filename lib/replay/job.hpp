// One job under the prefill protocol on one KV head: compress, attend, measure. Everything that a
// method claims is counted again here.
#pragma once

#include <exception>
#include <vector>

#include "attention/backend.hpp"
#include "attention/value_norms.hpp"
#include "replay/head_input.hpp"
#include "replay/job_result.hpp"

namespace kvbench {

/// What is computed once per KV head and serves all methods, budgets and seeds.
class HeadContext : public HeadInput {
 public:
  HeadContext(const Plan& plan, const Unit& unit, int threads);

  const ExactAttention& truth(Index g) const { return truth_[g]; }
  double sink_mass(Index g) const { return sink_mass_[g]; }  ///< metrics/memory.hpp
  const ValueNorms& norms() const { return norms_; }
  const SoftmaxSums& base(Index g) const { return base_[g]; }
  const std::vector<double>& group_mass() const { return group_mass_; }

 private:
  std::vector<ExactAttention> truth_;  // every query head of the group
  std::vector<double> sink_mass_;      // the same
  ValueNorms norms_;
  std::vector<MatrixD> queries_;
  std::vector<SoftmaxSums> base_;  // the sums point into the queries
  std::vector<double> group_mass_;
};

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

/// Returns the memory that a head and its jobs need under the prefill protocol.
MemoryNeed prefill_memory_need(const LayerMeta& layer, const ReplayOptions& options);

}  // namespace kvbench
