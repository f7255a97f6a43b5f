// Errors of whole layers: OUT.layers.csv. A job has one KV head. Its part (differences of its
// outputs, and once per head the exact outputs) waits in a journal, OUT.layers.csv.part, until all
// heads of the layer are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "replay/job_result.hpp"
#include "replay/plan_spec.hpp"
#include "report/csv.hpp"
#include "report/journal.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// A measured job has a part of its layer's error.
enum class JobState : std::uint8_t { open, unmeasured, measured };

class LayerErrors {
 public:
  /// Receives a line of the table; `job`: of the layer's first KV head.
  using PutLine = std::function<void(Index job, const Fields& line)>;

  /// Opens the journal; `resume` keeps the parts of the same run_id `run`. `states`: of the shard's
  /// jobs, which the caller keeps current; those set back to `open` must run again, as a line is
  /// missing that their lost part is needed for. `has_line(job)`: whether an earlier run made the
  /// line of a job for put_line. Throws IoError.
  LayerErrors(const PlanSpec& plan, const std::string& run, bool resume,
              std::vector<JobState>& states, const std::function<bool(Index job)>& has_line);

  /// Stores the part of a measured job of a layer with an error. Call it before the job's record is
  /// written. Thread-safe. Throws IoError.
  void add(Index job, const LayerPart& part);

  /// Gives `put_line` the missing lines of layers whose jobs are all done, until `stop`. No other
  /// thread may read the traces or call add() meanwhile. Throws IoError.
  void finish(const std::vector<TraceReader>& readers, int threads, const std::atomic<bool>& stop,
              const PutLine& put_line);

  bool lacks_lines() const { return !open_.empty(); }

  /// Removes the journal.
  void remove_parts() { journal_.remove(); }

 private:
  struct OpenLayer {
    Range units;
    std::vector<Index> entries;  // without a line
  };

  Index job_of(Index unit, Index entry) const {
    return unit * static_cast<Index>(plan_.entries.size()) + entry;
  }
  Index exact_number(Index unit) const { return plan_.jobs() + unit; }
  JobState& state(Index job) const { return states_[job - jobs_.begin]; }
  bool any(Range units, Index entry, JobState state) const;  // on some head
  std::vector<Matrix> parts(Range units, Index entry) const;
  bool make_lines(const OpenLayer& layer, const std::vector<TraceReader>& readers, int threads,
                  const std::atomic<bool>& stop, const PutLine& put_line) const;

  const PlanSpec& plan_;
  Range jobs_;  // of the shard
  std::vector<JobState>& states_;
  Journal journal_;
  std::vector<OpenLayer> open_;
  std::set<Index> exact_;  // units of open layers whose exact outputs are in the journal
  std::mutex mutex_;
};

}  // namespace kvbench
