// kvbench cluster: how the keys and values of a model cluster. Reads traces, has lib/cluster study
// one KV head at a time, and writes the tables of docs/schema.md with their manifest.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "core/types.hpp"
#include "replay/cluster_plan.hpp"

namespace kvbench {

/// MAJOR.MINOR of the tables together; as for a result file, appending a column raises MINOR.
inline constexpr std::string_view cluster_schema_version = "1.3";

struct ClusterResult {
  Index heads = 0;  ///< KV heads whose rows are written
  Index rows = 0;   ///< of all tables
  bool interrupted = false;
  double wall_s = 0.0;
  std::vector<std::string> changed_traces;  ///< written to during the run; the manifest says so too
};

/// Studies every selected KV head and writes OUT/{coverage,delta,growth,keys,norms}.csv, the
/// points, and the manifest OUT/cluster.json. Every value of the selected heads is checked before
/// the first file is made. The rows of a head are written when all of them are there: where `stop`
/// becomes true the head in work is dropped and the finished ones stay, and a killed run leaves
/// whole rows but for a table's last line. points.h5 appears at the end, of an interrupted run too.
/// Errors: InputError (trace values, a kept-set file that does not fit the traces, output
/// that exists, memory limit too small), IoError.
ClusterResult run_cluster(const ClusterPlan& plan, const std::string& command_line,
                          const std::atomic<bool>& stop);

}  // namespace kvbench
