#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.hpp"
#include "core/error.hpp"
#include "core/output_guard.hpp"
#include "report/csv.hpp"
#include "report/run_tables.hpp"
#include "report/summary.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

struct Options {
  std::vector<std::string> inputs;
  SummaryOptions summary;
  bool full = false;
  std::string csv;
};

void run(const Options& options) {
  std::optional<FileLock> lock;
  if (!options.csv.empty()) {
    check_outputs({options.inputs.begin(), options.inputs.end()}, {{options.csv, summary_kind()}});
    lock.emplace(options.csv);
  }
  std::vector<OpenTable> tables;
  for (const std::string& path : options.inputs) {
    tables.emplace_back([&path] { return open_result_table(path); });
  }
  const Summary summary = summarize(tables, options.summary);
  for (const std::string& name : summary.pooled) {
    tell("note: rows that differ in {0} are pooled; --by {0} separates them\n", name);
  }
  for (const auto& [status, rows] : summary.left_out) {
    tell("note: {} rows are left out: {}\n", rows, status);
  }
  if (!options.csv.empty()) {
    std::string text;
    for (const Fields& line : summary_csv(summary)) {
      text += csv_line(line);
    }
    write_file_atomically(options.csv, text);
  }
  const std::string text = summary_text(summary, options.full);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw IoError("summarize: cannot write to standard output");
  }
}

}  // namespace

void add_summarize(CLI::App& app) {
  const auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("summarize", "Reduce result rows to mean, sd and count");
  sub->add_option("inputs", o->inputs, "Result files; read as one table")
      ->required()
      ->type_name("OUT.csv");
  sub->add_option("--by", o->summary.by,
                  "Columns to group by besides algorithm, params and budget_requested")
      ->delimiter(',')
      ->allow_extra_args(false)  // else it swallows the files behind it
      ->type_name("COLUMN,...");
  sub->add_option("--metric", o->summary.metrics, "Columns to reduce")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("COLUMN,...")
      ->capture_default_str();
  sub->add_option("--sort", o->summary.sort, "Metric or group column to order by, NaN last")
      ->type_name("COLUMN");
  sub->add_flag("--descending", o->summary.descending, "Largest first");
  sub->add_flag("--full", o->full, "Show all parameters, not only those that differ");
  sub->add_option("--csv", o->csv, "Write the summary to this file as well")->type_name("FILE");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
