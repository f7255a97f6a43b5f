// One unit's shared part (the truth, the sums over sinks and recent tokens) and one job on it:
// compress, attend, measure. Everything that a method claims is counted again here.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "attention/backend.hpp"
#include "attention/score_book.hpp"
#include "attention/value_norms.hpp"
#include "replay/plan.hpp"
#include "report/schema.hpp"
#include "trace/caches.hpp"

namespace kvbench {

/// One evaluated step of one query head in a stream.
struct Step {
  Index position = 0;      ///< of the query, 0-based
  double rel_error = 0.0;  ///< |z-a| / |a| of this query
  Index bytes = 0;  ///< sinks, recent window and what the method holds, after this position came

  friend bool operator==(const Step&, const Step&) = default;
};

/// The tokens that a KV head's cache held exactly when the query at `position` attended.
struct KeptSet {
  Index position = 0;         ///< of the query, 0-based
  std::vector<Index> tokens;  ///< strictly ascending; sinks and recent tokens included

  friend bool operator==(const KeptSet&, const KeptSet&) = default;
};

/// A KV head's part of its layer's error, rounded to float32.
struct LayerPart {
  Matrix exact;        ///< [m, group * dv]: exact outputs of the evaluated queries, heads abreast
  Matrix differences;  ///< estimates less exact outputs
};

/// A row per replayed query head of the unit, in order; all else is empty where the rows were not
/// measured (has_lines).
struct JobResult {
  std::vector<Row> rows;
  std::vector<std::vector<Step>> steps;           ///< stream: by row, the evaluated steps
  std::vector<KeptSet> kept;                      ///< at the end; a stream's at every recorded step
  std::vector<std::vector<double>> query_errors;  ///< prefill: by row, of every evaluated query
  std::optional<HeadCache> cache;                 ///< where the plan exports caches
  LayerPart layer;                                ///< where the plan makes the layer's error
};

/// Where the windows of the prefill protocol lie in n tokens. Tokens before the three are seen by
/// no evaluated query of a layer with a window: nobody holds them, and they count nowhere.
struct Windows {
  Range sink;         ///< those of [0, --sink) that an evaluated query sees
  Range middle;       ///< what is compressed; empty where the windows meet
  Range recent;       ///< the rest
  Range scoring;      ///< positions of queries that methods may score with
  Index queries = 0;  ///< evaluated: the last min(queries, nq)

  /// Tokens that some evaluated query sees: what the full cache is.
  Index seen() const { return sink.size() + middle.size() + recent.size(); }
};

/// `window`: the layer's (KvHead::window), 0 where it has none.
Windows windows_of(const ReplayOptions& options, Index n, Index nq, Index window = 0);
inline Windows windows_of(const ReplayOptions& options, const LayerMeta& layer) {
  return windows_of(options, layer.n, layer.nq, layer.window.value_or(0));
}

/// The positions of a range, in order.
std::vector<Index> positions_of(Range range);

/// A KV head as methods see it: what a survey of heads that share a budget needs, and no more.
class HeadInput {
 public:
  HeadInput(const Plan& plan, const Unit& unit);
  HeadInput(const HeadInput&) = delete;  // the score book points into the head
  HeadInput& operator=(const HeadInput&) = delete;

  const Plan& plan() const { return plan_; }
  const Unit& unit() const { return unit_; }
  const KvHead& head() const { return head_; }
  const HeadId& id() const { return id_; }
  const Windows& windows() const { return windows_; }
  const std::vector<Index>& middle() const { return middle_; }
  const Backend& backend() const { return device_ == nullptr ? cpu_backend() : *device_; }

  /// What an entry asks of its method here; without true mass and share.
  Task task(const Entry& entry) const;

 private:
  const Plan& plan_;
  const Unit& unit_;
  HeadId id_;
  KvHead head_;
  std::unique_ptr<Backend> device_;  // null: the CPU
  Windows windows_;
  std::vector<Index> middle_;
  ScoreBook book_;
  Matrix o_proj_;                           // empty: the same of output projections
  std::vector<ExtraSet> extra_;             // what variants ask for
  std::vector<NamedScores> named_scores_;   // the same
  std::shared_ptr<const RopeTables> rope_;  // null: no variant asks, or the trace has none
};

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

/// Bytes that a budget of `rho` gives for a middle of `full` bytes: floor(rho * full).
Index budget_bytes(double rho, Index full);

/// Throws InputError where products of the head's numbers leave the range of the plan's precision;
/// the run that the message asks for works.
void check_range(const Plan& plan, const Unit& unit, const KvHead& head);

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

/// Of a head under the prefill protocol.
MemoryNeed memory_need(const LayerMeta& layer, const ReplayOptions& options);

}  // namespace kvbench
