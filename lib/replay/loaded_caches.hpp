// `kvbench evaluate`: a replay whose compressed results are read from caches files.
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

/// The groups of one or more caches files. Files of a run's shards form common groups.
class LoadedCaches {
 public:
  /// Opens the files. Throws InputError if one is no caches file, is of the stream protocol, or
  /// differs from the first in windows or traces; or if groups differ only in `scores` or `scope`.
  /// Other members throw InputError if two files have the same head in the same group.
  explicit LoadedCaches(const std::vector<std::string>& paths);
  LoadedCaches(const LoadedCaches&) = delete;  // variants point to the methods
  LoadedCaches& operator=(const LoadedCaches&) = delete;

  const CachesMeta& meta() const { return files_.front().meta(); }

  /// Throws InputError if the SHA-256 of a trace is not in the files.
  void check_traces(const std::vector<std::string>& paths) const;

  /// Appends a variant per algorithm and parameters, and an entry per group, in the files' order.
  /// The variants point into this object.
  void list(std::vector<Variant>& variants, Entries& entries) const;

  bool holds(const CachePlace& place) const;

  struct Loaded {
    Compressed compressed;     ///< empty if absent()
    double compress_ms = 0.0;  ///< NaN if unknown
    std::optional<Index> scoring_queries;
    std::string infeasible;  ///< why the budget cannot be met; otherwise empty
    std::string failed;      ///< the method's error; otherwise empty
    bool absent() const { return !infeasible.empty() || !failed.empty(); }
  };
  /// Thread-safe. Throws InputError if the group lacks the head, or as compressed_of().
  Loaded read(const PlanSpec& plan, const Unit& unit, const Entry& entry, const KvHead& head,
              std::span<const Index> middle) const;

  /// Shared budgets that were checked: group, trace, prompt and layer (0 for scope `layers`).
  using Checked = std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>>;
  /// Reads all entries of a unit. Throws InputError as read(), or if entries exceed their budget,
  /// over the heads that share it; those of a policy have others. Ignores missing entries. `shared`
  /// is updated; start empty.
  void check(const PlanSpec& plan, const Unit& unit, const KvHead& head, Checked& shared) const;

  /// SHA-256 of the files, separated by spaces.
  std::string sha256() const;

 private:
  // The groups of all files with the same algorithm, params, budget and seed.
  struct Group {
    CacheGroup info;
    std::vector<std::pair<std::size_t, std::size_t>> parts;  // file, group in the file
    Method method;
  };
  struct Found {
    const CacheReader* file;
    std::size_t group;
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

CachePlace cache_place(const PlanSpec& plan, const Unit& unit);

}  // namespace kvbench
