// Which tokens algorithms kept, for the points of kvbench cluster: OUT.kept.csv files of replays.
#pragma once

#include <map>
#include <string>

#include "cluster/kept_labels.hpp"
#include "cluster/study.hpp"
#include "core/types.hpp"
#include "replay/cluster_plan.hpp"
#include "report/csv.hpp"

namespace kvbench {

/// The kept sets of a plan's heads, each at the last step that its file has.
class KeptSets {
 public:
  /// Reads the plan's kept_by files. Rows of heads that are not selected are passed over. Errors:
  /// InputError (file, row, what, expected): no such table, another schema, a prompt of another
  /// length, malformed tokens, a step twice, a file without any selected head, two settings of one
  /// head under one label.
  explicit KeptSets(const ClusterPlan& plan);

  /// Sets points.kept_by for the head at `place` (ClusterPlan::place): labels separated by `;`, in
  /// the order of the algorithms' names, then of their settings.
  void fill(const Fields& place, Points& points) const;

 private:
  // Ranges stay text until a head is written: the sets of a whole model as numbers would be larger
  // than the head in work.
  struct Set {
    KeptSetting setting;
    Index step = -1;
    std::string ranges;
  };

  void read(const std::string& file);
  bool add(std::map<std::string, std::string> row);

  std::map<Fields, Index> tokens_;                // n, by place
  std::map<Fields, std::map<Fields, Set>> sets_;  // by place, then by all that tells settings apart
  KeptLabels labels_;
};

}  // namespace kvbench
