// Kept tokens from OUT.kept.csv files, for the points of kvbench cluster.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "cluster/study.hpp"
#include "core/types.hpp"
#include "replay/cluster_plan.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// The kept sets of a plan's heads, at the last step of each setting. The label of a setting is its
/// algorithm, then ` key=value` for the budget (`budget_requested`), parameters and `seed` that
/// differ within that algorithm. An empty budget is omitted.
class KeptSets {
 public:
  /// Reads the plan's kept_by files and ignores heads that are not selected. Throws InputError
  /// (file, row, got, expected): no such table, another schema, a prompt of another length,
  /// malformed tokens, a duplicate step, a file without a selected head, two settings of a head
  /// with one label.
  explicit KeptSets(const ClusterPlan& plan);

  /// Sets points.kept_by of the head at `place` (ClusterPlan::place): labels separated by `;`,
  /// sorted by algorithm, then by setting.
  void fill(const Fields& place, Points& points) const;

 private:
  // Ranges stay text until a head is written, to save memory.
  struct Set {
    Index step = -1;
    std::string ranges;
  };
  void read(const std::string& file);
  bool add(std::map<std::string, std::string> row);
  std::string label(const Fields& setting) const;

  std::map<Fields, Index> tokens_;                // n, by place
  std::map<Fields, std::map<Fields, Set>> sets_;  // by place and setting
  // Values seen, by algorithm and name.
  std::map<std::pair<std::string, std::string>, std::set<std::string>> seen_;
};

}  // namespace kvbench
