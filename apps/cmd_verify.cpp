#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>

#include "commands.hpp"
#include "core/error.hpp"
#include "core/printable.hpp"
#include "decimal.hpp"
#include "exit_code.hpp"
#include "long_run.hpp"
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
      verify_sample(o.table, o.sample, o.seed, o.threads, stop_on_signals(kInterrupted));
  if (r.interrupted) {
    tell("{}\n", kInterrupted);
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
  fmt::print("{} rows ran again, {} differ\n", r.rows_again, r.different);
  if (r.different > 0) {
    throw Exit{kExitFailedRows};
  }
}

}  // namespace

void add_verify(CLI::App& app) {
  const auto o = std::make_shared<VerifyCommand>();
  CLI::App* sub = app.add_subcommand(
      "verify", "Check a result table's checksums, and run a sample of its rows again");
  sub->footer(
      "\nExit code 1: some row is another when it runs again. A table that was changed after it "
      "was\n"
      "written is bad input: exit code 2.");
  sub->add_option("table", o->table,
                  "Result table; its manifest and side tables are checked as well")
      ->required()
      ->type_name("OUT.csv");
  number(*sub, "--sample", o->sample,
         "Run so many rows again, drawn at random, from what the manifest says of traces and "
         "options, and compare all cells but timings; the other query heads of a drawn row's KV "
         "head run and are compared as well",
         "N");
  number(*sub, "--seed", o->seed, "Which rows are drawn", "S");
  number(*sub, "--threads", o->threads, "CPU threads; 0 is all", "N");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
