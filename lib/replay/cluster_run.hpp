// kvbench cluster: studies how keys and values cluster (lib/cluster), one KV head at a time, and
// writes the tables of docs/schema.md with their manifest.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "core/types.hpp"
#include "replay/cluster_plan.hpp"
#include "replay/run.hpp"

namespace kvbench {

/// MAJOR.MINOR of all tables. Appending a column raises MINOR.
inline constexpr std::string_view cluster_schema_version = "1.4";

struct ClusterResult {
  Index heads = 0;  ///< KV heads written
  Index rows = 0;   ///< over all tables
  bool interrupted = false;
  double wall_s = 0.0;
  std::vector<std::string> changed_traces;  ///< traces modified during the run, as in the manifest
};

/// Studies every selected KV head and writes
/// OUT/{attention,coverage,delta,growth,keys,norms,spectrum}.csv, the points, and the manifest
/// OUT/cluster.json. Checks every value of the selected heads before it creates a file. If `stop`
/// becomes true, drops the unfinished head and keeps the finished ones. The files appear at the
/// end, also if the run is interrupted or fails. Throws InputError (trace values, a kept-set file
/// of other traces, output exists, memory limit too small) or IoError.
ClusterResult run_cluster(const ClusterPlan& plan, const std::string& command_line,
                          const std::atomic<bool>& stop, const AtEnd& at_end = {});

}  // namespace kvbench
