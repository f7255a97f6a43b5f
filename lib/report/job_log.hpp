// OUT.csv.log, the log of a run: one checksummed record per finished job. All tables of the run are
// made from it. Each record survives a kill; a torn last one is no record.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/types.hpp"
#include "report/journal.hpp"
#include "report/manifest.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

/// What a finished job left: its lines in every table of the run.
struct JobRecord {
  Index place = 0;                        ///< of its first row in the undivided OUT.csv, from 0
  std::string key;                        ///< what the job is: job_key()
  bool lacked_memory = false;             ///< kLackedMemory is the status of its rows
  std::map<std::string, Index> statuses;  ///< rows of OUT.csv by status_kind()
  /// Whole lines with their line ends, by TableSpec::name. A line of OUT.layers.csv is with the
  /// first KV head of its layer.
  std::map<std::string, std::string> lines;
  std::vector<std::byte> cache;  ///< as of to_bytes(HeadCache); empty: none

  /// Counts a row of OUT.csv with this status. All rows of a job are measured, or none.
  void count(std::string_view status);
  bool measured() const;  ///< has_lines() of its rows
  Index rows() const;
};

/// The identity of a job in every plan that has it: the cells of its rows that name trace, prompt,
/// layer, KV head, algorithm, parameters, budget and seed, and its query heads.
std::string job_key(const std::vector<Fields>& rows);

/// Writes a log. Thread-safe.
class JobLog {
 public:
  /// Opens the log of a run for appending, or with `resume` goes on with that of the same run_id.
  /// Throws IoError, or InputError if a record before the last is damaged.
  JobLog(const std::filesystem::path& path, const Manifest& manifest, bool resume);

  void append(JobRecord record);
  /// Adds the line of OUT.layers.csv to the job at this place, whose record may come later.
  void append_layer(Index place, std::string_view line);
  bool has_layer(Index place) const;

  /// Replaces the manifest, which the log has from the start of the run.
  void append_manifest(const Manifest& manifest);
  /// Notes that no job and no line of a layer is missing.
  void append_end();

  /// An existing record, with its line of OUT.layers.csv.
  JobRecord read(Index place) const;

  /// Gives the file another name. Throws IoError.
  void rename(const std::filesystem::path& path) { journal_.rename(path); }
  void remove() { journal_.remove(); }

 private:
  Journal journal_;
};

/// The jobs of a run in the plan's order.
class JobRecords {
 public:
  virtual ~JobRecords() = default;
  /// The manifest at the start of the run (log) or at its end (tables, log after a trace changed).
  const Manifest& manifest() const { return manifest_; }
  /// Whether no job of the run and no line of a layer is missing.
  virtual bool whole() const = 0;
  /// Reads the next job; false at the end. Throws InputError for a damaged file.
  virtual bool next(JobRecord& record) = 0;

 protected:
  /// Throws InputError if it has no plan, another schema or unreadable options. `path`: for
  /// messages.
  void set_manifest(Manifest manifest, const std::filesystem::path& path);

  Manifest manifest_;
};

/// Whether PATH is a log with a record: otherwise a run was killed before it wrote its manifest.
bool log_started(const std::filesystem::path& path);

/// Opens a log, which may still be written. Throws InputError as of Journal, or if it has no
/// manifest of this schema.
std::unique_ptr<JobRecords> open_log(const std::filesystem::path& path,
                                     Journal::Damage damage = Journal::Damage::refuse);

/// Opens the tables of a finished run. `locked`: the caller holds the lock of OUT.csv. Errors: as
/// of open_run_table(); InputError if a run is writing them, the run has not ended, is of another
/// schema, or a table does not match the others.
std::unique_ptr<JobRecords> open_tables(const std::filesystem::path& csv, bool locked = false);

/// The tables of a run, written together: each is complete before the first gets its name.
class RunTables {
 public:
  /// `tables`: as of written_tables(). Throws IoError.
  RunTables(const std::filesystem::path& csv, const std::vector<const TableSpec*>& tables);

  void put(const JobRecord& record);
  Index rows() const { return rows_; }
  Index count(std::string_view status) const;

  /// Replaces all tables of an earlier run and its manifest. `whole`: no row is missing, so the
  /// manifest gets the SHA-256 of each table. Throws IoError.
  void publish(Manifest& manifest, bool whole);

 private:
  std::filesystem::path csv_;
  std::vector<std::pair<std::string, StagedFile>> files_;  // OUT.csv first
  Index rows_ = 0;
  std::map<std::string, Index> statuses_;
};

}  // namespace kvbench
