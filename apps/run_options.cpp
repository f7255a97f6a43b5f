#include "run_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "choice.hpp"
#include "commands.hpp"
#include "config.hpp"
#include "core/error.hpp"
#include "decimal.hpp"
#include "exit_code.hpp"
#include "long_run.hpp"
#include "plan_text.hpp"
#include "replay/resources.hpp"
#include "replay/run.hpp"
#include "report/manifest.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

void parse_shard(const std::string& text, ReplayOptions& o) {
  const auto slash = text.find('/');
  const auto read = [&](std::string_view part, Index& out) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), out);
    return error == std::errc() && end == part.data() + part.size();
  };
  const std::string_view view = text;
  if (slash == std::string::npos || !read(view.substr(0, slash), o.shard_index) ||
      !read(view.substr(slash + 1), o.shard_count)) {
    throw InputError(fmt::format("--shard: got '{}', expected i/N", text));
  }
}

}  // namespace

void add_files(CLI::App& sub, RunOptions& o) {
  sub.add_option("traces", o.replay.traces, "Trace files (docs/trace_format.md)")
      ->required()
      ->type_name("TRACE.h5");
  sub.add_option(
         "-o,--output", o.replay.out,
         "Result table to write; its manifest is OUT.csv.json. OUT.layers.csv beside it has whole "
         "layers' errors, where the traces hold output projections")
      ->type_name("OUT.csv");
  sub.add_option("--config", o.config,
                 "TOML file with any of these options; the command line "
                 "wins over it")
      ->type_name("FILE.toml");
  sub.add_flag("--dry-run", o.dry_run, "Print the plan and stop; nothing is written");
}

void add_selection(CLI::App& sub, RunOptions& o, const char* group) {
  ReplayOptions& r = o.replay;
  numbers(sub, "--layers", r.layers, r.layer_ranges, "Layer indices of the model")->group(group);
  numbers(sub, "--heads", r.heads, r.head_ranges, "Query heads")->group(group);
  list(sub, "--prompts", r.prompts, "Prompt ids [default: all]", "ID,...")->group(group);
}

void add_machine(CLI::App& sub, RunOptions& o, const char* group) {
  ReplayOptions& r = o.replay;
  sub.add_option("--device", r.device,
                 "Where attention, scores and selections are computed; auto is cuda where a device "
                 "can be used")
      ->capture_default_str()
      ->type_name("cpu|cuda[:i]|auto")
      ->group(group);
  sub.add_option("--precision", o.precision,
                 "What products and exponentials of attention are computed in; sums over tokens "
                 "are float64 in both (docs/performance.md)")
      ->capture_default_str()
      ->type_name("float32|float64")
      ->group(group);
  number(sub, "--threads", r.threads, "CPU threads; 0 is all. Rows do not depend on it", "N")
      ->group(group);
  if (!o.evaluates) {
    number(sub, "--repeat", r.repeat,
           "Run each job once to warm up, then N times: compress_ms and attend_us_per_query are "
           "medians, and columns of their own have the spread. Threads disturb each other's times: "
           "--threads 1 disturbs them least",
           "N")
        ->group(group);
  }
  sub.add_option("--memory-limit", o.memory_limit,
                 "Memory limit of the program, open KV heads and their jobs, as bytes or as 8G "
                 "(K, M, G, T: powers of 1024); fewer threads are used to keep it, and a method "
                 "whose job does not fit is refused")
      ->type_name("BYTES")
      ->group(group);
  sub.add_option("--shard", o.shard, "Run the i-th of N parts of the plan; see kvbench merge")
      ->type_name("i/N")
      ->group(group);
  sub.add_option(
         "--shard-costs", r.shard_costs,
         "Make the parts of equal estimated time instead of an equal number of jobs. The "
         "times are those of TABLE.csv, which the same options wrote on a part of the heads "
         "(docs/cluster_runs.md)")
      ->type_name("TABLE.csv")
      ->group(group);
  sub.add_flag("--kept", r.kept,
               "Record in OUT.kept.csv which tokens each algorithm held exactly: at the end, and "
               "in a stream every --eval-every tokens")
      ->group(group);
  sub.add_flag(
         "--per-query", o.per_query,
         "prefill: write OUT.queries.csv, the relative error along the evaluated queries, in "
         "bins of neighbouring ones (the default), or all: of each query, 10 to 20 times as much")
      ->type_name("bins|all")
      ->group(group);
  sub.add_flag("--resume", r.resume, "Keep the rows that OUT.csv has and run what is missing")
      ->group(group);
  if (!o.evaluates) {
    sub.add_flag(
           "--extend", r.extend,
           "As --resume, and the algorithms, budgets, seeds, layers, heads and prompts may be "
           "more than OUT.csv has; the result is that of one run with all of them")
        ->group(group);
  }
  sub.add_flag("--overwrite", r.overwrite, "Start anew where OUT.csv exists")->group(group);
}

void run(CLI::App& command, RunOptions& o) {
  if (!o.config.empty()) {
    apply_config(command, o.config);
    o.replay.config = o.config;
  }
  if (o.evaluates && o.replay.caches.empty()) {
    throw InputError("evaluate: no caches, expected --caches C.h5");
  }
  o.replay.protocol = choice("--protocol", o.protocol, {Protocol::prefill, Protocol::stream});
  o.replay.precision = choice("--precision", o.precision, {Precision::float32, Precision::float64});
  o.replay.scores = choice("--scores", o.scores, {Scores::past, Scores::all});
  // A flag without a value is `true`.
  o.replay.per_query =
      o.per_query == "true" ? PerQuery::bins
      : o.per_query == "false"
          ? PerQuery::none
          : choice("--per-query", o.per_query, {PerQuery::none, PerQuery::bins, PerQuery::all});
  if (!o.memory_limit.empty()) {
    o.replay.memory_limit = set_memory_limit(o.memory_limit);
  }
  if (!o.shard.empty()) {
    parse_shard(o.shard, o.replay);
  }
  o.replay.resume = o.replay.resume || o.replay.extend;
  const std::atomic<bool>& stop =
      stop_on_signals("interrupted while a job ran; finished rows are kept, --resume goes on");
  Plan plan = make_plan(o.replay);
  plan.options.program_bytes = program_bytes() + shared_bytes(plan);
  for (const std::string& note : plan.notes) {
    tell("{}\n", note);
  }
  for (const std::string& note : scoring_notes(plan)) {
    tell("{}\n", note);
  }
  if (const std::string note = ranges_note(plan); !note.empty()) {
    tell("{}\n", note);
  }
  if (o.dry_run) {
    print_plan(plan);
    return;
  }
  if (o.replay.out.empty()) {
    throw InputError(command.get_name() + ": no output, expected -o OUT.csv");
  }
  if (std::ranges::any_of(plan.ranges, &std::string::empty, &SpecRange::end)) {
    tell("{}\n", ranges_line(plan));  // else the note has said it
  }
  const RunResult r = run_plan(plan, shell_line(command_arguments()), stop);
  tell("{}: {} rows in {:.1f} s{}{}{}{}\n", o.replay.out, r.rows, r.wall_s,
       r.resumed > 0 ? fmt::format(", {} of them resumed", r.resumed) : "",
       r.infeasible > 0 ? fmt::format(", {} infeasible", r.infeasible) : "",
       r.degenerate > 0 ? fmt::format(", {} degenerate", r.degenerate) : "",
       r.failed > 0 ? fmt::format(", {} FAILED (see column status)", r.failed) : "");
  expect_unchanged(r.changed_traces, o.replay.out);
  if (r.interrupted) {
    tell("interrupted; --resume goes on\n");
    throw Exit{kExitInterrupted};
  }
  if (r.failed > 0) {
    throw Exit{kExitFailedRows};
  }
}

}  // namespace kvbench
