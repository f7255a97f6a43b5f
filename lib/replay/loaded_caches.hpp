// `kvbench evaluate`: caches files in place of methods. The plan, the ground truth, the metrics and
// the tables are those of a replay. Only the result of compression is read from a file.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/contract.hpp"
#include "replay/plan_spec.hpp"
#include "trace/caches.hpp"

namespace kvbench {

/// The groups of one caches file or of several (a run's shards), as a plan needs them.
class LoadedCaches {
 public:
  /// Opens the files. Errors: InputError where one is no caches file, is of the stream protocol, or
  /// has other windows or traces than the first; where groups differ in `scores` or `scope` alone.
  /// What asks for a head throws InputError where two files hold it in groups that are alike.
  explicit LoadedCaches(const std::vector<std::string>& paths);
  LoadedCaches(const LoadedCaches&) = delete;  // variants point to the methods
  LoadedCaches& operator=(const LoadedCaches&) = delete;

  const CachesMeta& meta() const { return files_.front().meta(); }

  /// Throws InputError where a trace is none of those that the caches were made from.
  void check_traces(const std::vector<std::string>& paths) const;

  /// A variant per algorithm and parameters, and an entry per group: in the files' order.
  void list(std::vector<Variant>& variants, Entries& entries) const;

  /// Whether any group holds something of the unit.
  bool holds(const CachePlace& place) const;

  /// What stands in place of compressing.
  struct Loaded {
    Compressed compressed;
    double compress_ms = 0.0;  ///< NaN where the file does not say
    std::optional<Index> scoring_queries;
    std::string infeasible;  ///< why the budget cannot be met; then `compressed` is empty
    std::string failed;      ///< the error that the method ended with; likewise
    bool absent() const { return !infeasible.empty() || !failed.empty(); }
  };
  /// Thread-safe. Throws InputError where the group lacks the head, or as compressed_of.
  Loaded read(const PlanSpec& plan, const Unit& unit, const Entry& entry, const KvHead& head,
              std::span<const Index> middle) const;

  /// Budgets that were checked already: group, trace, prompt and, where heads of one layer share,
  /// layer.
  using Checked = std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>>;
  /// Reads and checks all that the plan will read of one unit, before the first row, and that no
  /// entries hold more bytes than their budget, over the heads that share it. Entries that are
  /// missing are left to their rows. Errors: as read; InputError.
  void check(const PlanSpec& plan, const Unit& unit, const KvHead& head, Checked& shared) const;

  /// SHA-256 of the files, separated by spaces. Reads them.
  std::string sha256() const;

 private:
  // Groups of one algorithm, params, budget and seed; several where a run's shards are files.
  struct Group {
    CacheGroup info;
    std::vector<std::pair<std::size_t, std::size_t>> parts;  // file, and group of the file
    Method method;
  };
  struct Found {
    const CacheReader* file;  // null: no file has the place
    std::size_t group;        // of the file
    CachePlace place;

    auto read(const CacheReader::Shape& shape) const { return file->read(group, place, shape); }
    std::string where() const { return file->where(group, place); }
  };

  Found find(const Group& group, const CachePlace& place) const;
  void check_shared(const PlanSpec& plan, const Group& group, const Unit& unit) const;

  std::vector<CacheReader> files_;
  std::vector<std::string> paths_;
  std::vector<Group> groups_;
};

/// Where caches files hold a unit.
CachePlace cache_place(const PlanSpec& plan, const Unit& unit);

}  // namespace kvbench
