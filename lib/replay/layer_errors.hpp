// Errors of whole layers: OUT.layers.csv. A job has one KV head. Its part (differences of its
// outputs, and once per head the exact outputs) waits in a journal, OUT.layers.csv.part, until all
// heads of the layer are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_set>
#include <vector>

#include "replay/job_result.hpp"
#include "replay/plan_spec.hpp"
#include "report/csv.hpp"
#include "report/journal.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Layers without lines, if other layers have lines: [[trace, prompt, layer], ...].
nlohmann::json layers_without_error(const PlanSpec& plan);

class LayerErrors {
 public:
  /// Receives a line of the table; `job`: of the layer's first KV head.
  using PutLine = std::function<void(Index job, const Fields& line)>;

  /// Opens the journal; `resume` keeps its parts. Throws IoError.
  LayerErrors(const PlanSpec& plan, bool resume, PutLine put_line);

  /// Takes over a job of an earlier run. `measured`: it has a part; `line`: the layer's line is
  /// with it. Must be called before open().
  void note(Index job, bool measured, bool line);

  /// Must be called after note(), before add(). Returns the jobs taken over that must run again: a
  /// line is missing, and the journal lacks their part.
  std::vector<Index> open();

  /// Stores a job's part. Call it before the job's record is written. Thread-safe. Throws IoError.
  void add(Index job, const JobResult& result);

  /// Gives put_line the lines of layers whose jobs are all done, until `stop`. No other thread may
  /// read the traces or call add() meanwhile. Throws IoError.
  void finish(const std::vector<TraceReader>& readers, int threads, const std::atomic<bool>& stop);

  bool lacks_lines() const { return !open_.empty(); }

  /// Removes the journal.
  void remove_parts() { journal_.remove(); }

 private:
  enum class State : std::uint8_t { open, measured, unmeasured };

  Index job_of(Index unit, Index entry) const { return unit * entries_ + entry; }
  Index exact_number(Index unit) const { return plan_.jobs() + unit; }
  auto written(Index job) { return written_[job - jobs_.begin]; }
  State& state(Index job) { return states_[job - jobs_.begin]; }
  bool any(Range units, Index entry, State state) const;  // on some head
  bool measured(Range units, Index entry) const;          // on all heads
  bool done(Range units) const;
  std::vector<Matrix> parts(Range units, Index entry) const;
  bool make_lines(Range units, const std::vector<TraceReader>& readers, int threads,
                  const std::atomic<bool>& stop);

  const PlanSpec& plan_;
  PutLine put_line_;
  Index entries_;
  Range jobs_;
  Journal journal_;
  std::vector<State> states_;        // by job of the shard
  std::vector<Range> open_;          // units of layers that may lack lines
  std::vector<bool> written_;        // by the job of a line's first unit
  std::unordered_set<Index> exact_;  // units whose exact outputs are in the journal
  std::mutex mutex_;
};

}  // namespace kvbench
