// The files that a run writes: OUT.csv and the tables beside it. A job's lines go to all of them,
// those of the main table last: a resumed run does rows again that have no lines.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "replay/cache_export.hpp"
#include "replay/job.hpp"
#include "replay/layer_errors.hpp"
#include "replay/plan.hpp"
#include "replay/resume.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// Rows of OUT.csv by status.
struct RowCounts {
  Index rows = 0;
  Index failed = 0;
  Index infeasible = 0;
  Index degenerate = 0;
};

class Outputs {
 public:
  /// Before anything is read at length or written: throws InputError where a file that this plan
  /// may write must not be written (core/output_guard.hpp), and where one exists that it is neither
  /// to resume nor to overwrite.
  static void check(const Plan& plan);

  /// Opens the files as the plan's options say: to resume, to overwrite, or anew. To overwrite, all
  /// files of the earlier run are removed first. To resume, what it left of jobs that are not whole
  /// in all files goes. Errors: as of CsvWriter; InputError where a file holds what this plan does
  /// not make. `run`: the manifest's; rows of the run `earlier` become rows of it.
  Outputs(const Plan& plan, const std::string& run, const std::string& earlier = {});

  /// Whether an earlier run has done the job.
  bool done(Index job) const { return done_[static_cast<std::size_t>(job - jobs_.begin)]; }
  Index rows_resumed() const { return rows_resumed_; }

  /// Appends what a job left. Thread-safe. Throws IoError.
  void write(Index job, const JobResult& result);

  /// Between jobs: the lines of layers whose jobs are all done. Reads the traces. Throws IoError.
  void finish_layers(int threads, const std::atomic<bool>& stop);
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
    const SideTable* table;  // null: OUT.csv
    std::unique_ptr<CsvWriter> writer;
  };

  const Plan& plan_;
  std::vector<Out> tables_;  // OUT.csv first; it is the last to be written
  Range jobs_;               // of this shard
  std::vector<bool> done_;   // by an earlier run, of jobs_
  Index rows_resumed_ = 0;
  std::unique_ptr<CacheExport> caches_;  // null: none are exported
  std::unique_ptr<LayerErrors> layers_;  // null: no layer's error is made
};

}  // namespace kvbench
