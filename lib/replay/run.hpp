// Runs a plan: an Executor computes, a ResultStore keeps, a manifest describes.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/plan.hpp"
#include "replay/result_store.hpp"
#include "report/manifest.hpp"

namespace kvbench {

struct RunResult : RowCounts {  // of the file
  Index resumed = 0;            ///< rows that were there
  bool interrupted = false;
  double wall_s = 0.0;
  std::vector<std::string> changed_traces;  ///< written to during the run; the manifest says so too
};

/// Runs this shard's jobs of the plan into options.out and writes the manifest beside it.
/// The plan's side tables (a stream's steps, kept tokens) live and die with the first: refused
/// where they exist, resumed, overwritten and put into order with it. Every value of the selected
/// heads is checked before the first row is written. Rows are appended as jobs finish; at the end
/// the files are put into the plan's order. `stop`: when it becomes true no further job is begun,
/// the finished rows stay. `command_line` goes into the manifest. Errors: InputError (trace values,
/// the output exists, a file to resume that is of another plan, memory limit too small), IoError.
RunResult run_plan(const Plan& plan, const std::string& command_line,
                   const std::atomic<bool>& stop);

/// The manifest of a run on such a device that starts now; hashes the traces, whose readers are
/// given in the same order. Throws InputError where one was written to since it was opened,
/// IoError.
Manifest start_manifest(const std::string& command_line, nlohmann::json configuration,
                        const ResourceOptions& options, const std::vector<std::string>& traces,
                        const std::vector<TraceReader>& readers, int threads);

/// At the end of the run: hashes traces again whose size or times are not those of its begin, and
/// marks in the manifest those that are others now. Returns their paths. Throws IoError.
std::vector<std::string> mark_changed(Manifest& manifest, const std::vector<TraceReader>& readers);

/// The options as resolved, for the manifest and the dry run.
nlohmann::json configuration(const PlanSpec& plan);

}  // namespace kvbench
