// All files of a run: OUT.csv, side tables, journals, exported caches. The only code that decides
// what a run overwrites and resumes, and the order of rows. A job's lines go to OUT.csv last, so
// that a resumed run repeats jobs with missing lines.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "replay/cache_export.hpp"
#include "replay/finished_table.hpp"
#include "replay/job_result.hpp"
#include "replay/layer_errors.hpp"
#include "replay/plan_spec.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "trace/reader.hpp"

namespace kvbench {

struct RowCounts {
  Index rows = 0;
  Index failed = 0;
  Index infeasible = 0;
  Index degenerate = 0;
};

class ResultStore {
 public:
  /// Throws InputError if a file of this plan must not be written (core/output_guard.hpp), or
  /// exists without --resume or --overwrite. Call it first: it writes nothing.
  static void check(const PlanSpec& plan);

  /// Opens the files. Overwriting removes all files of the earlier run. Resuming removes jobs that
  /// are incomplete in some file. `now`: manifest of this run. Throws InputError if a file cannot
  /// be resumed or has rows outside the plan; IoError as CsvWriter.
  ResultStore(const PlanSpec& plan, const Manifest& now);

  /// Jobs of this shard that are still to run, ascending.
  const std::vector<Index>& open_jobs() const { return open_jobs_; }
  Index rows_resumed() const { return rows_resumed_; }

  /// Appends a job's lines to all files. Thread-safe. Throws IoError.
  void write(Index job, const JobResult& result);

  /// Writes the lines of layers whose jobs are all done. No job may run meanwhile. Throws IoError.
  void finish_layers(const std::vector<TraceReader>& readers, int threads,
                     const std::atomic<bool>& stop);
  /// Whether a layer lacks lines. A stopped run may have all rows but not all lines.
  bool lacks_layers() const { return layers_ && layers_->lacks_lines(); }

  /// Puts the tables into the plan's order. Returns the counts of OUT.csv as it is on disk.
  RowCounts reconcile();

  /// Writes the caches file after a complete run. `trace_sha256`: by trace of the plan.
  void finish(const std::vector<std::string>& trace_sha256);

  std::map<std::string, std::string> sha256() const;

  void sync();

 private:
  struct Out {
    const TableSpec* table;
    std::unique_ptr<CsvWriter> writer;
  };

  const PlanSpec& plan_;
  std::vector<Out> tables_;  // OUT.csv first; written last
  std::vector<Index> open_jobs_;
  Index rows_resumed_ = 0;
  std::unique_ptr<CacheExport> caches_;
  std::unique_ptr<LayerErrors> layers_;
};

}  // namespace kvbench
