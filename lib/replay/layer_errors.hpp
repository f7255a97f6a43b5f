// The errors of whole layers: OUT.layers.csv. A job sees one KV head, so what jobs leave for it
// (the differences of their outputs, and once per KV head the exact ones) waits in a journal on the
// disk, OUT.layers.csv.part, until all heads of the layer are done.
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

/// Layers of the plan that have no lines where others do: [[trace, prompt, layer], ...].
nlohmann::json layers_without_error(const PlanSpec& plan);

class LayerErrors {
 public:
  /// Opens the table and the journal. Errors: as of CsvWriter and FinishedTable.
  LayerErrors(const PlanSpec& plan, CsvWriter::Mode mode, const std::string& run,
              const std::string& earlier);

  /// To be called once: finds what is left to do. Returns the jobs among `before` that must run
  /// again since their layer's lines are not there and the journal lacks their part.
  std::vector<Index> open(const FinishedTable& before);

  /// Puts down a job's part, before its rows. Thread-safe. Throws IoError.
  void keep(Index job, const JobResult& result);

  /// Makes the lines of layers whose jobs are all done, unless `stop`. Reads the traces: no other
  /// thread may read them or call keep() at the same time. Throws IoError.
  void finish(const std::vector<TraceReader>& readers, int threads, const std::atomic<bool>& stop);

  /// Whether lines are missing of layers whose jobs are all done or not.
  bool lacks_lines() const { return !open_.empty(); }

  /// Puts the lines into the plan's order; the journal goes once no line is missing.
  void reconcile();
  void sync() { writer_.sync(); }

 private:
  enum class State : std::uint8_t { open, measured, unmeasured };

  Index job_of(Index unit, Index entry) const { return unit * entries_ + entry; }
  Index exact_number(Index unit) const { return plan_.jobs() + unit; }
  auto written(Index job) { return written_[job - jobs_.begin]; }
  State& state(Index job) { return states_[job - jobs_.begin]; }
  bool some(Range units, Index entry, State state) const;  // on some head
  bool measured(Range units, Index entry) const;           // on all heads
  bool done(Range units) const;
  std::vector<Matrix> parts(Range units, Index entry) const;
  bool make_lines(Range units, const std::vector<TraceReader>& readers, int threads,
                  const std::atomic<bool>& stop);

  const PlanSpec& plan_;
  Index entries_;
  Range jobs_;                          // of the shard
  std::optional<FinishedTable> lines_;  // of an earlier run, until open()
  CsvWriter writer_;
  Journal journal_;
  std::vector<State> states_;        // of the shard's jobs
  std::vector<Range> open_;          // units of layers that may lack lines
  std::vector<bool> written_;        // by the job of a line's first unit
  std::unordered_set<Index> exact_;  // units whose exact outputs are in the journal
  std::mutex mutex_;
};

}  // namespace kvbench
