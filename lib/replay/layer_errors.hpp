// Errors of whole layers: OUT.layers.csv. A job has one KV head. Its part (differences of its
// outputs, and once per head the exact outputs) waits in a journal, OUT.layers.csv.part, until all
// heads of the layer are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "replay/finished_table.hpp"
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
  /// Opens the table and the journal. `earlier`: run of the rows to take over, as for CsvWriter.
  /// Throws as CsvWriter and FinishedTable.
  LayerErrors(const PlanSpec& plan, CsvWriter::Mode mode, const std::string& run,
              const std::string& earlier);

  /// Must be called once, first. `before`: rows of OUT.csv. Returns the jobs with rows that must
  /// run again: a line is missing, and the journal lacks their part.
  std::vector<Index> open(const FinishedTable& before);

  /// Stores a job's part. Call it before the job's rows are written. Thread-safe. Throws IoError.
  void add(Index job, const JobResult& result);

  /// Writes the lines of layers whose jobs are all done, until `stop`. No other thread may read the
  /// traces or call add() meanwhile. Throws IoError.
  void finish(const std::vector<TraceReader>& readers, int threads, const std::atomic<bool>& stop);

  bool lacks_lines() const { return !open_.empty(); }

  /// Puts the lines into the plan's order. Removes the journal if no line is missing.
  void reconcile();
  void sync() { writer_.sync(); }

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
  Index entries_;
  Range jobs_;
  std::optional<FinishedTable> lines_;  // of an earlier run; empty after open()
  CsvWriter writer_;
  Journal journal_;
  std::vector<State> states_;        // by job of the shard
  std::vector<Range> open_;          // units of layers that may lack lines
  std::vector<bool> written_;        // by the job of a line's first unit
  std::unordered_set<Index> exact_;  // units whose exact outputs are in the journal
  std::mutex mutex_;
};

}  // namespace kvbench
