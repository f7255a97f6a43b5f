// The files of a run: its log while jobs run, then OUT.csv, side tables and exported caches, which
// are made from the log. The only code that decides what a run overwrites and resumes.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/file_lock.hpp"
#include "replay/job_result.hpp"
#include "replay/layer_errors.hpp"
#include "replay/plan_spec.hpp"
#include "report/job_log.hpp"
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

  /// Opens the log. Resuming takes over the jobs of an earlier run: of its log, or of its tables if
  /// it has ended. `now`: manifest of this run. Throws InputError if another run holds the files or
  /// the earlier run cannot be resumed, and IoError.
  ResultStore(const PlanSpec& plan, const Manifest& now);

  /// Jobs of this shard that are still to run, ascending.
  std::vector<Index> open_jobs() const;
  Index rows_resumed() const { return rows_resumed_; }

  /// Appends a job's record to the log. Thread-safe. Throws IoError.
  void write(Index job, const JobResult& result);

  /// Adds the lines of layers whose jobs are all done. No job may run meanwhile. Throws IoError.
  void finish_layers(const std::vector<TraceReader>& readers, int threads,
                     const std::atomic<bool>& stop);
  /// Whether no row and no line of a layer is missing.
  bool complete() const;

  /// Writes the tables of all finished jobs, and the manifest with its row counts. `whole`: the run
  /// is complete(); it also gets its caches file and loses its log, unless options.keep_log. Later
  /// calls do nothing. Thread-safe. Throws IoError.
  RowCounts publish(Manifest& manifest, bool whole);

 private:
  struct KeptTables {
    RowCounts rows;
    Manifest manifest;
  };

  void start_anew(const Manifest& now);
  bool keep_tables(JobRecords& earlier);
  void take_over(JobRecords& earlier, const Manifest& now, bool same_plan, bool has_log);
  bool lacks_cache(const JobRecord& record) const;
  JobState& state(Index job) { return states_[job - range_.begin]; }
  Index place(Index job) const;
  Index job_at(Index place) const;

  const PlanSpec& plan_;
  std::string run_;
  Range range_;  // of jobs
  FileLock lock_;
  std::optional<FileLock> caches_lock_;
  std::vector<Index> unit_places_;  // of each unit's first row
  std::vector<JobState> states_;    // by job of this shard
  std::optional<KeptTables> kept_;  // nothing is missing: there is no log
  std::unique_ptr<JobLog> log_;
  std::optional<LayerErrors> layers_;
  std::optional<RowCounts> published_;  // by publish()
  bool keeps_caches_ = false;           // C.h5 has the caches of all jobs
  Index rows_resumed_ = 0;
  mutable std::mutex mutex_;  // of states_ and publish()
};

}  // namespace kvbench
