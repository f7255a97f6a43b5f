// `--export-caches C.h5`: what each job's method holds. Finished jobs leave it in a journal,
// C.h5.part, one record a job, so that a kill loses nothing and memory holds one job's; when all
// jobs are done C.h5 is made of it, in the plan's order.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/plan_spec.hpp"
#include "report/csv.hpp"
#include "report/journal.hpp"
#include "trace/caches.hpp"

namespace kvbench {

class CacheExport {
 public:
  /// Opens the journal; where the plan resumes, with the records of an earlier run, and C.h5 itself
  /// where that is done. Errors: IoError; InputError where another run writes C.h5.
  explicit CacheExport(const PlanSpec& plan);

  /// Throws InputError where the plan's prompts cannot be told apart in one file: two traces that
  /// hold a prompt of the same id.
  static void check(const PlanSpec& plan);
  /// Before anything is opened: throws InputError where the folder of C.h5 is missing, or where the
  /// plan resumes and C.h5 is of another run.
  static void check_earlier(const PlanSpec& plan);

  /// Whether the job left what rows of this status call for.
  bool agrees(Index job, std::string_view status) const;
  /// Thread-safe. Throws IoError.
  void write(Index job, const HeadCache& cache);

  /// Makes C.h5 of what all jobs of the shard left, if anything is new, and deletes the journal.
  /// `trace_sha256`: of the plan's traces, in order. Throws IoError.
  void finish(const std::vector<std::string>& trace_sha256);

  /// Where the records are until then.
  static std::filesystem::path journal_path(const PlanSpec& plan);

 private:
  CachePlace place_of(Index job) const;
  bool in_file(Index job) const;
  std::optional<HeadCache> find(Index job) const;

  const PlanSpec& plan_;
  std::vector<CacheGroup> groups_;
  std::vector<std::vector<Index>> jobs_;            // of each group, ascending
  std::map<Index, std::size_t> group_of_;           // by job of the shard
  std::unique_ptr<CacheReader> file_;               // C.h5 of an earlier run
  std::map<std::string, std::size_t> file_groups_;  // its groups by name
  FileLock lock_;
  Journal journal_;
};

}  // namespace kvbench
