// Runs a plan: Executor computes, ResultStore writes, the manifest describes.
#pragma once

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/plan.hpp"
#include "replay/result_store.hpp"
#include "report/manifest.hpp"

namespace kvbench {

/// Counts of OUT.csv after the run.
struct RunResult : RowCounts {
  Index resumed = 0;  ///< rows of earlier runs
  bool interrupted = false;
  double wall_s = 0.0;
  std::vector<std::string> changed_traces;  ///< traces modified during the run, as in the manifest
};

/// Takes a function that must be called before the process ends while jobs run; an empty one: no
/// longer.
using AtEnd = std::function<void(std::function<void()>)>;

/// Has `publish` called if the process ends while the object lives.
class Ending {
 public:
  Ending(const AtEnd& at_end, std::function<void()> publish);
  ~Ending();
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;

 private:
  const AtEnd& at_end_;
};

/// Runs this shard's jobs. Checks every value of the selected heads before the first row. Finished
/// jobs go to the log (report/job_log.hpp); at the end options.out, the side tables and the
/// manifest are written from it, in the plan's order. No job begins after `stop` becomes true; then
/// the tables have the finished jobs. `command_line` goes into the manifest. Throws InputError
/// (trace values, output exists, output of another plan, memory limit too small) or IoError.
RunResult run_plan(const Plan& plan, const std::string& command_line, const std::atomic<bool>& stop,
                   const AtEnd& at_end = {});

/// Returns the manifest of a run that starts now, with the SHA-256 of the traces. `readers`: in the
/// order of `traces`. Throws InputError if a trace was modified after it was opened, or IoError.
Manifest start_manifest(const std::string& command_line, nlohmann::json configuration,
                        const ResourceOptions& options, const std::vector<std::string>& traces,
                        const std::vector<TraceReader>& readers, int threads);

/// Marks the traces in the manifest whose contents changed during the run, and returns their paths.
/// Hashes only traces with another size or time. Throws IoError.
std::vector<std::string> mark_changed(Manifest& manifest, const std::vector<TraceReader>& readers);

/// The resolved options, for the manifest and the dry run.
nlohmann::json configuration(const PlanSpec& plan);

}  // namespace kvbench
