// The only loop and the only clock: runs a plan's jobs and writes rows and manifest.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>

#include "replay/job.hpp"
#include "replay/math_check.hpp"
#include "replay/outputs.hpp"
#include "replay/plan.hpp"

namespace kvbench {

struct RunResult : RowCounts {  // of the file
  Index resumed = 0;            ///< rows that were there
  bool interrupted = false;
  double wall_s = 0.0;
  MathChecks math;  ///< `--gpu-math fast` against exact on the first head that was run; else empty
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

/// The options as resolved, for the manifest and the dry run.
nlohmann::json configuration(const Plan& plan);

/// Most bytes that a unit and its jobs need under the plan's protocol.
MemoryNeed memory_need(const Plan& plan, const Unit& unit);

/// Threads that the run will use under the memory limit. Errors: InputError where one does not fit.
int usable_threads(const Plan& plan);

/// KV heads whose jobs run together: plan.heads_at_once, or fewer where `threads` jobs leave less
/// memory under the limit; 1 on the CPU.
Index heads_at_once(const Plan& plan, int threads);

}  // namespace kvbench
