#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "number_options.hpp"
#include "parse_enum.hpp"
#include "report/csv.hpp"
#include "report/summary.hpp"
#include "report/summary_table.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

struct SummarizeCommand {
  std::vector<std::string> inputs;
  SummaryOptions summary;
  std::vector<std::string> where;
  TableFormat format = TableFormat::text;
  bool full = false;
  std::string csv;
};

SummaryOptions resolve(const SummarizeCommand& options) {
  SummaryOptions out = options.summary;
  out.sort = full_column_name(out.sort);
  for (std::string& name : out.by) {
    name = full_column_name(name);
  }
  for (const std::string& text : options.where) {
    for (RowFilter& filter : row_filters(text)) {
      out.where.push_back(std::move(filter));
    }
  }
  return out;
}

void run(const SummarizeCommand& options) {
  const SummaryOptions wanted = resolve(options);
  std::optional<FileLock> lock;
  if (!options.csv.empty()) {
    check_outputs({options.inputs.begin(), options.inputs.end()}, {{options.csv, summary_kind()}});
    check_folder("--csv", options.csv);
    lock.emplace(options.csv);
  }
  std::vector<ResultTable> tables;
  for (const std::string& path : options.inputs) {
    tables.push_back(result_table(path));
  }
  const Summary summary = summarize(tables, wanted);
  const Detail detail = for_programs(options.format) ? Detail::all
                        : options.full               ? Detail::params
                                                     : Detail::brief;
  for (const std::string& name : summary.pooled) {
    log("note: rows that differ in {0} are pooled; --by {0} separates them\n", name);
  }
  for (const auto& [status, rows] : summary.skipped) {
    log("note: skipped {} rows: {}\n", rows, status);
  }
  if (!options.csv.empty()) {
    write_file_atomically(options.csv,
                          format_table(summary_table(summary, Detail::all), TableFormat::csv));
  }
  const std::string text =
      format_table(summary_table(summary, detail), options.format, stdout_width());
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw IoError("summarize: cannot write to standard output");
  }
}

}  // namespace

void add_summarize(CLI::App& app) {
  const auto o = std::make_shared<SummarizeCommand>();
  CLI::App* sub = app.add_subcommand("summarize",
                                     "Reduce result rows to means, standard deviations and counts");
  sub->add_option("tables", o->inputs, "Result tables, read as one")
      ->required()
      ->type_name("OUT.csv");
  list_option(*sub, "--by", o->summary.by,
              "Columns to group by, besides algorithm, params and budget_requested", "COLUMN,...");
  list_option(*sub, "--metric", o->summary.metrics, "Columns to reduce", "COLUMN,...")
      ->capture_default_str();
  sub->add_option("--where", o->where,
                  "Use only rows of these values (!=: without them): patterns (* and ?) for text, "
                  "numbers and ranges A:B (without B). May be repeated, all conditions must hold; "
                  "\\, is a comma within a value")
      ->allow_extra_args(false)
      ->type_name("COLUMN=VALUE,...");
  sub->add_flag("--pool", o->summary.pool,
                "Pool rows that differ in model, dtype, precision, protocol, sink, recent, scores, "
                "device or n_queries. Without it they are rejected");
  sub->add_option("--sort", o->summary.sort, "Metric or group column to sort by; NaN comes last")
      ->type_name("COLUMN");
  sub->add_flag("--descending", o->summary.descending, "Sort from largest to smallest");
  sub->add_flag("--full", o->full, "Show all parameters instead of those that differ");
  enum_option(*sub, "--format", o->format,
              {TableFormat::text, TableFormat::markdown, TableFormat::csv},
              "Output format; csv has full precision");
  sub->add_option("--csv", o->csv, "Also write the summary to this file, one line per group")
      ->type_name("FILE");
  sub->footer(
      "text and markdown show means and standard errors over a group's rows, to three "
      "significant digits. Rows of one prompt are not independent; docs/statistics.md explains how "
      "to compare methods over prompts. text fits the width of the terminal or $COLUMNS (default "
      "100). Without $COLUMNS, the width in a file or pipe is unlimited.\n"
      "Examples:\n"
      "  kvbench summarize out.csv --by layer --metric rel_error --format markdown\n"
      "  kvbench summarize out.csv --where 'algorithm=snap*,h2o,layer=0:4'");
  sub->callback([o] { run(*o); });
}

}  // namespace kvbench
