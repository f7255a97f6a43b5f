#include "run_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "commands.hpp"
#include "config.hpp"
#include "core/error.hpp"
#include "core/parse_number.hpp"
#include "exit_code.hpp"
#include "long_run.hpp"
#include "number_options.hpp"
#include "parse_enum.hpp"
#include "plan_text.hpp"
#include "replay/planner.hpp"
#include "replay/resources.hpp"
#include "replay/run.hpp"
#include "report/manifest.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

void parse_shard(const std::string& text, ReplayOptions& o) {
  const auto slash = text.find('/');
  const std::string_view view = text;
  if (slash == std::string::npos || !parse_number(view.substr(0, slash), o.shard_index) ||
      !parse_number(view.substr(slash + 1), o.shard_count)) {
    throw InputError(fmt::format("--shard: got '{}', expected i/N", text));
  }
}

}  // namespace

void add_files(CLI::App& sub, RunOptions& o) {
  sub.add_option("traces", o.replay.traces, "Trace files (docs/trace_format.md)")
      ->required()
      ->type_name("TRACE.h5");
  sub.add_option("-o,--output", o.replay.out,
                 "Result table to write, with its manifest OUT.csv.json. Traces with output "
                 "projections also give OUT.layers.csv, the errors of whole layers")
      ->type_name("OUT.csv");
  config_option(sub, o.replay.config);
  sub.add_flag("--dry-run", o.dry_run, "Print the plan without running it; writes no files");
}

void add_machine(CLI::App& sub, RunOptions& o, const char* group) {
  ReplayOptions& r = o.replay;
  sub.add_option("--device", r.device,
                 "Device of attention, scores and selections; auto is cuda if a device is usable")
      ->capture_default_str()
      ->type_name("cpu|cuda[:i]|auto")
      ->group(group);
  enum_option(sub, "--precision", r.precision, {Precision::float32, Precision::float64},
              "Precision of attention products and exponentials. Sums over tokens are always "
              "float64 (docs/performance.md)")
      ->group(group);
  integer_option(sub, "--threads", r.threads, "CPU threads; 0 uses all. Rows do not depend on it",
                 "N")
      ->group(group);
  if (!o.evaluates) {
    integer_option(sub, "--repeat", r.repeat,
                   "Timed runs per job, after one warm-up run if N > 1; compress_ms and "
                   "attend_us_per_query are medians. Use --threads 1 for stable times",
                   "N")
        ->group(group);
  }
  memory_option(sub, r.memory_limit, "; methods whose jobs do not fit are rejected")->group(group);
  text_option(
      sub, "--shard", [&r](const std::string& text) { parse_shard(text, r); },
      "Run part i of N of the plan, to be joined by kvbench merge", "i/N")
      ->group(group);
  sub.add_flag("--kept", r.kept,
               "Write OUT.kept.csv, the tokens that each algorithm holds exactly at the end "
               "(stream: also every --eval-every tokens)")
      ->group(group);
  sub.add_flag("--per-query", o.per_query,
               "prefill, retrieval: write OUT.queries.csv, the relative error per bin of "
               "consecutive queries (without a value), or of each query (all: 10 to 20 times "
               "larger)")
      ->type_name("bins|all")
      ->group(group);
  sub.add_flag(
         "--resume", r.resume,
         "Keep the finished jobs of OUT.csv.log, or of OUT.csv if the run has ended, and compute "
         "missing ones")
      ->group(group);
  if (!o.evaluates) {
    sub.add_flag("--extend", r.extend,
                 "Like --resume, with additional algorithms, budgets, seeds, layers, heads or "
                 "prompts. The result equals that of one run with all of them")
        ->group(group);
  }
  sub.add_flag("--overwrite", r.overwrite, "Overwrite existing OUT.csv and its side tables")
      ->group(group);
  sub.add_flag("--keep-log", r.keep_log,
               "Keep OUT.csv.log, which has a record per finished job, when the tables are whole")
      ->group(group);
}

void run(CLI::App& command, RunOptions& o) {
  apply_config(command, o.replay.config);
  if (o.evaluates && o.replay.caches.empty()) {
    throw InputError("evaluate: no caches, expected --caches C.h5");
  }
  if (!o.evaluates && command.count("--total-budget") > 0) {
    check_input(command.count("--budget") == 0, "--budget and --total-budget exclude each other");
    o.replay.total_budget = true;
  }
  // CLI11 gives "true" for a flag without a value.
  o.replay.per_query = o.per_query == "true" ? PerQuery::bins
                       : o.per_query == "false"
                           ? PerQuery::none
                           : parse_enum<PerQuery>("--per-query", o.per_query,
                                                  {PerQuery::none, PerQuery::bins, PerQuery::all});
  o.replay.resume = o.replay.resume || o.replay.extend;
  const std::atomic<bool>& stop =
      stop_on_signals("interrupted during a job; finished rows are kept, rerun with --resume");
  Plan plan = make_plan(o.replay);
  plan.options.program_bytes = program_bytes() + shared_bytes(plan);
  for (const std::string& note : plan.notes) {
    log("{}\n", note);
  }
  for (const std::string& note : scoring_notes(plan)) {
    log("{}\n", note);
  }
  if (o.dry_run) {
    print_plan(plan);
    return;
  }
  if (o.replay.out.empty()) {
    throw InputError(command.get_name() + ": no output, expected -o OUT.csv");
  }
  if (!plan.ranges.empty()) {
    log("{}\n", ranges_line(plan));
  }
  const RunResult r = run_plan(plan, shell_line(command_arguments()), stop, call_before_end);
  log("{}: {} rows in {:.1f} s{}{}{}{}\n", o.replay.out, r.rows, r.wall_s,
      r.resumed > 0 ? fmt::format(", {} of them resumed", r.resumed) : "",
      r.infeasible > 0 ? fmt::format(", {} infeasible", r.infeasible) : "",
      r.degenerate > 0 ? fmt::format(", {} degenerate", r.degenerate) : "",
      r.failed > 0 ? fmt::format(", {} FAILED (see column status)", r.failed) : "");
  expect_unchanged(r.changed_traces, o.replay.out);
  if (r.interrupted) {
    log("interrupted; rerun with --resume\n");
    throw Exit{kExitInterrupted};
  }
  if (r.failed > 0) {
    throw Exit{kExitFailedRows};
  }
}

}  // namespace kvbench
