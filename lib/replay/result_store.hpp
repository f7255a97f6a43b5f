// All files of a run: OUT.csv, the tables beside it, their journals, exported caches. Alone decides
// what a run may overwrite, what it resumes, and in which order rows stand. A job's lines go to the
// main table last, so that a resumed run repeats jobs whose lines are not whole.
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

/// Rows of OUT.csv by status.
struct RowCounts {
  Index rows = 0;
  Index failed = 0;
  Index infeasible = 0;
  Index degenerate = 0;
};

class ResultStore {
 public:
  /// Before anything is read at length or written: throws InputError where a file that this plan
  /// may write must not be written (core/output_guard.hpp), and where one exists that it is neither
  /// to resume nor to overwrite.
  static void check(const PlanSpec& plan);

  /// Opens the files as the plan's options say: create, overwrite or resume. To overwrite, all
  /// files of the earlier run are removed first. To resume, compares the plan with the earlier
  /// run's manifest, and removes what that run left of jobs that are not whole in all files. `now`:
  /// the manifest of this run, which goes into new rows. Throws InputError where a file cannot be
  /// resumed or holds what this plan does not make, IoError as CsvWriter.
  ResultStore(const PlanSpec& plan, const Manifest& now);

  /// Jobs of this shard that no earlier run has done, ascending.
  const std::vector<Index>& open_jobs() const { return open_jobs_; }
  Index rows_resumed() const { return rows_resumed_; }

  /// Appends what a job left. Thread-safe. Throws IoError.
  void write(Index job, const JobResult& result);

  /// Between jobs: the lines of layers whose jobs are all done. Reads the traces. Throws IoError.
  void finish_layers(const std::vector<TraceReader>& readers, int threads,
                     const std::atomic<bool>& stop);
  /// Whether a layer lacks its lines: a run that was stopped may have all rows and not all lines.
  bool lacks_layers() const { return layers_ && layers_->lacks_lines(); }

  /// Puts the tables into the plan's order, and counts what they really hold.
  RowCounts reconcile();

  /// After a complete run: makes the caches file. `trace_sha256`: of the traces, in order.
  void finish(const std::vector<std::string>& trace_sha256);

  /// The tables' SHA-256 by name, for the manifest.
  std::map<std::string, std::string> sha256() const;

  /// Forces everything to the disk.
  void sync();

 private:
  struct Out {
    const TableSpec* table;
    std::unique_ptr<CsvWriter> writer;
  };

  const PlanSpec& plan_;
  std::vector<Out> tables_;  // OUT.csv first; it is the last to be written
  std::vector<Index> open_jobs_;
  Index rows_resumed_ = 0;
  std::unique_ptr<CacheExport> caches_;  // null: none are exported
  std::unique_ptr<LayerErrors> layers_;  // null: no layer's error is made
};

}  // namespace kvbench
