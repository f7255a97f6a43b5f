#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "core/error.hpp"
#include "core/printable.hpp"
#include "exit_code.hpp"
#include "long_run.hpp"
#include "number_options.hpp"
#include "replay/verify.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

constexpr const char* kInterrupted = "interrupted; no row was compared";

struct VerifyCommand {
  std::string table;
  Index sample = 0;
  std::uint64_t seed = 0;
  int threads = 0;
  std::vector<std::string> traces;
};

void run(const VerifyCommand& o) {
  if (o.sample < 0) {
    throw InputError(fmt::format("--sample: got {}, expected a number of rows", o.sample));
  }
  for (const std::string& line : verify_tables(o.table)) {
    fmt::print("{}\n", printable(line));
  }
  if (o.sample == 0) {
    return;
  }
  const VerifyResult r =
      verify_sample(o.table, o.sample, o.seed, o.threads, stop_on_signals(kInterrupted), o.traces);
  if (r.interrupted) {
    log("{}\n", kInterrupted);
    throw Exit{kExitInterrupted};
  }
  for (const std::string& line : r.traces) {
    fmt::print("{}\n", printable(line));
  }
  for (const LineAgain& line : r.lines) {
    fmt::print("{}: row {}: {}\n", printable(line.table.string()), line.row,
               line.different.empty()
                   ? "agrees"
                   : printable(fmt::format("{}", fmt::join(line.different, "; "))));
  }
  fmt::print("{} rows recomputed, {} differ\n", r.rows_again, r.different);
  if (r.different > 0) {
    throw Exit{kExitFailedRows};
  }
}

}  // namespace

void add_verify(CLI::App& app) {
  const auto o = std::make_shared<VerifyCommand>();
  CLI::App* sub = app.add_subcommand(
      "verify", "Verify the checksums of a result table, and recompute a sample of its rows");
  sub->footer(
      "\nExit code 1: some recomputed rows differ. Exit code 2: a table was changed after it was "
      "written.");
  sub->add_option("table", o->table, "Result table to verify, with its manifest and side tables")
      ->required()
      ->type_name("OUT.csv");
  CLI::Option* sample = integer_option(
      *sub, "--sample", o->sample,
      "Number of random rows to recompute with the traces and options of the manifest. All cells "
      "but timings are compared, also for other query heads of the same KV head",
      "N");
  sub->add_option(
         "--trace", o->traces,
         "Trace of the run, by its file name, where the manifest's path does not lead to it "
         "from this folder. May be repeated")
      ->needs(sample)
      ->allow_extra_args(false)
      ->type_name("TRACE.h5");
  integer_option(*sub, "--seed", o->seed, "Seed of the random sample", "S");
  integer_option(*sub, "--threads", o->threads, "CPU threads; 0 uses all", "N");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
