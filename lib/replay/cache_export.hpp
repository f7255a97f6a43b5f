// `--export-caches C.h5`: what each job's method holds. Jobs append records to a journal,
// C.h5.part, which survives a kill. After the last job C.h5 is written from it in the plan's order.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/loaded_caches.hpp"
#include "replay/plan_spec.hpp"
#include "report/csv.hpp"
#include "report/journal.hpp"
#include "trace/caches.hpp"

namespace kvbench {

class CacheExport {
 public:
  /// Opens the journal. If the plan resumes, keeps the records of the earlier run and opens its
  /// C.h5, if any. Throws IoError, or InputError if another run writes C.h5.
  explicit CacheExport(const PlanSpec& plan);

  /// Throws InputError if two traces of the plan have a prompt of the same id.
  static void check(const PlanSpec& plan);
  /// Throws InputError if the folder of C.h5 is missing, or if the plan resumes and C.h5 is of
  /// another run. Does nothing without --export-caches.
  static void check_earlier(const PlanSpec& plan);

  /// Whether the job's cache is stored, or rows of this status have none.
  bool agrees(Index job, std::string_view status) const;
  /// Appends a job's record. Thread-safe. Throws IoError.
  void write(Index job, const HeadCache& cache);

  /// Writes C.h5 if the journal has new records, and removes the journal. `trace_sha256`: by trace
  /// of the plan. No job may run. Throws IoError.
  void finish(const std::vector<std::string>& trace_sha256);

  static std::filesystem::path journal_path(const PlanSpec& plan);

 private:
  CachePlace place(Index job) const { return cache_place(plan_, plan_.unit_of(job)); }
  bool in_file(Index job) const;
  std::optional<HeadCache> find(Index job) const;

  const PlanSpec& plan_;
  std::vector<CacheGroup> groups_;
  std::vector<std::vector<Index>> jobs_;            // by group, ascending
  std::map<Index, std::size_t> group_of_;           // by job of the shard
  std::unique_ptr<CacheReader> file_;               // C.h5 of an earlier run
  std::map<std::string, std::size_t> file_groups_;  // groups of file_ by name
  FileLock lock_;
  Journal journal_;
};

}  // namespace kvbench
