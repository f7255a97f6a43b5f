#include "replay/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "algorithms/policy.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/rng.hpp"
#include "core/sha256.hpp"
#include "core/temporary_files.hpp"
#include "replay/option_list.hpp"
#include "replay/planner.hpp"
#include "replay/run.hpp"
#include "replay/selection.hpp"
#include "report/job_log.hpp"
#include "report/manifest.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

Temporary scratch_folder() {
  std::string name = (fs::temp_directory_path() / "kvbench-verify-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) {
    throw_io("make the folder", name, errno);
  }
  return Temporary(name);
}

void check_counts(const fs::path& csv, const Manifest& m, Index rows, Index failures) {
  const auto check = [&](const char* what, Index got, Index expected) {
    if (got != expected) {
      throw InputError(fmt::format("{}: got {} {}, expected {} as in the manifest", csv.string(),
                                   got, what, expected));
    }
  };
  check("rows", rows, m.rows);
  check("failures", failures, m.failures);
}

std::string line_of(const TableReader& table, bool whole_file) {
  return fmt::format("{}: {} rows, {}", table.source(), table.rows(),
                     whole_file ? "the checksum of the file is right"
                                : "the file has no checksum (the run has not ended)");
}

// The options of the run, without the output.
ReplayOptions options_of(const fs::path& csv, const Manifest& m) {
  ReplayOptions o;
  try {
    const nlohmann::json& c = m.configuration;
    for (const TraceFile& trace : m.traces) {
      o.traces.push_back(trace.path);
    }
    visit_options(o, [&](const char* key, auto& value, OptionEffect) {
      option_from_json(option_of(c, key), value);
    });
    o.export_caches.clear();
    if (!o.caches.empty()) {  // they determine algorithms and budgets
      o.policies.clear();
      o.budgets.clear();
    } else {
      for (const nlohmann::json& a : c.at("algorithms")) {
        const std::string params = a.at("params");
        if (a.at("name") == kPolicyName) {
          continue;  // read from its file
        }
        o.algorithms.push_back(a.at("name").get<std::string>() + (params.empty() ? "" : ":") +
                               params);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw InputError(
        fmt::format("{}: configuration: {}", manifest_path(csv).string(), error.what()));
  }
  if (m.shard) {
    o.shard_index = m.shard->index;
    o.shard_count = m.shard->count;
  }
  return o;
}

// Replaces the paths of the manifest by those of `traces`, by file name.
void move_traces(const fs::path& csv, const std::vector<std::string>& traces, Manifest& m) {
  for (const std::string& path : traces) {
    const auto found =
        std::ranges::find(m.traces, fs::path(path).filename(),
                          [](const TraceFile& trace) { return fs::path(trace.path).filename(); });
    check_input(found != m.traces.end(),
                fmt::format("--trace {}: the run read no trace of this file name ({})", path,
                            manifest_path(csv).string()));
    found->path = path;
  }
}

// Opens each path as a trace before hashing it: the manifest may name any file.
std::vector<std::string> check_traces(const fs::path& csv, const Manifest& m) {
  std::vector<std::string> out;
  for (const TraceFile& trace : m.traces) {
    const std::string got = TraceReader(trace.path, Require::keys).sha256();
    if (got != trace.sha256) {
      throw InputError(
          fmt::format("{}: SHA-256 is {:.16}..., expected {:.16}..., that of the trace "
                      "of {}",
                      trace.path, got, trace.sha256, csv.string()));
    }
    out.push_back(fmt::format("{}: the trace of {}, its SHA-256 is right",
                              fs::absolute(trace.path).lexically_normal().string(), csv.string()));
  }
  return out;
}

// The manifest has the first digits of each policy's SHA-256 in the parameters of its entry.
void check_policies(const fs::path& csv, const Manifest& m, const ReplayOptions& options) {
  if (options.policies.empty()) {
    return;
  }
  std::set<std::string> params;
  for (const nlohmann::json& a : m.configuration.at("algorithms")) {
    params.insert(a.at("params"));
  }
  for (const std::string& path : options.policies) {
    Policy now;
    now.name = fs::path(path).stem().string();
    now.sha256 = sha256_file(path);
    check_input(params.contains(now.params()),
                fmt::format("{}: the policy was changed after the run of {}: SHA-256 is {:.16}...",
                            path, csv.string(), now.sha256));
  }
}

// Writes a log with the jobs of the tables that have none of the rows in `drawn`. Throws InputError
// for a job without memory, which a resumed run has.
void log_other_jobs(const fs::path& csv, const std::vector<Index>& drawn, const fs::path& log,
                    const Manifest& manifest) {
  const auto records = open_tables(csv);
  JobLog out(log, manifest, false);
  Index row = 0;
  for (JobRecord record; records->next(record);) {
    if (record.lacked_memory) {
      throw InputError(
          fmt::format("{}: row {} is `{}`, expected none for --sample; replay --resume computes it",
                      csv.string(), row + 1, kLackedMemory));
    }
    const auto first = std::ranges::lower_bound(drawn, row);
    row += record.rows();
    if (first == drawn.end() || *first >= row) {
      out.append(std::move(record));
    }
  }
}

std::vector<std::string> cell_differences(const Fields& header, const Fields& first,
                                          const Fields& again, bool result_table) {
  std::vector<std::string> out;
  for (std::size_t c = 0; c < header.size(); ++c) {
    if (first[c] != again[c] && !(result_table && columns()[c].timing)) {
      out.push_back(fmt::format("{} is {}, again {}", header[c],
                                first[c].empty() ? "empty" : first[c],
                                again[c].empty() ? "empty" : again[c]));
    }
  }
  return out;
}

// Adds the lines that differ, and the rows in `drawn` (null: side table).
void compare(const fs::path& path, const fs::path& path_again, const std::vector<Index>* drawn,
             VerifyResult& result) {
  TableReader first(path);
  TableReader again(path_again);
  std::vector<LineAgain> lines;
  bool more = first.next();
  bool more_again = again.next();
  for (; more && more_again; more = first.next(), more_again = again.next()) {
    auto different = cell_differences(first.header(), first.row(), again.row(), drawn != nullptr);
    if (!different.empty() ||
        (drawn != nullptr && std::ranges::binary_search(*drawn, first.rows() - 1))) {
      lines.push_back({path, first.rows(), std::move(different)});
    }
  }
  if (more || more_again) {
    for (; more; more = first.next()) {
    }
    for (; more_again; more_again = again.next()) {
    }
    lines = {{path, 1, {fmt::format("{} lines, again {}", first.rows(), again.rows())}}};
  }
  for (LineAgain& line : lines) {
    result.different += line.different.empty() ? 0 : 1;
    result.lines.push_back(std::move(line));
  }
}

}  // namespace

std::vector<std::string> verify_tables(const fs::path& csv) {
  const std::unique_ptr<FileLock> lock = lock_where_possible(csv);
  const Manifest m = read_manifest(csv);
  if ((!m.plan || m.run_id != run_id(m.plan->hash, trace_hashes(m)))) {
    throw InputError(fmt::format(
        "{}: run_id is {:.40}, expected {} of this plan and these traces (the manifest was "
        "changed after it was written)",
        manifest_path(csv).string(), m.run_id,
        m.plan ? run_id(m.plan->hash, trace_hashes(m)) : "that"));
  }
  const auto table = open_run_table(m, main_table(), csv);
  const std::size_t status = table->column("status");
  Index failures = 0;
  while (table->next()) {
    failures += status_kind(table->row()[status]) == "failed" ? 1 : 0;
  }
  if (m.end) {
    check_counts(csv, m, table->rows(), failures);
  }
  std::vector<std::string> out{line_of(*table, m.sha256.has_value())};
  for (const TableSpec* side : side_tables_of(m)) {
    const fs::path path = side->path(csv);
    if (fs::exists(path) || (m.sha256 && m.sha256->contains(side->name()))) {
      const auto lines = open_run_table(m, *side, path);
      while (lines->next()) {
      }
      out.push_back(line_of(*lines, m.sha256.has_value()));
    }
  }
  return out;
}

VerifyResult verify_sample(const fs::path& csv, Index sample, std::uint64_t seed, int threads,
                           const std::atomic<bool>& stop, const std::vector<std::string>& traces) {
  Manifest m = read_manifest(csv);
  move_traces(csv, traces, m);
  check_input(m.sha256 && m.plan,
              fmt::format("{}: the run has not ended, expected a finished run", csv.string()));
  check_input(m.schema == schema_version, fmt::format("{}: got schema {}, expected {} for --sample",
                                                      csv.string(), m.schema, schema_version));
  VerifyResult out;
  out.traces = check_traces(csv, m);
  const Temporary scratch = scratch_folder();
  ReplayOptions options = options_of(csv, m);
  check_policies(csv, m, options);
  options.threads = threads;
  options.out = (scratch.path() / csv.filename()).string();
  options.resume = true;
  options.infeasible_if_named = true;
  const Plan plan = make_plan(options);
  // The manifest has no SHA-256 of caches but in the plan's hash.
  const std::string with = options.caches.empty()
                               ? ""
                               : fmt::format(", with {} as now,", fmt::join(options.caches, ", "));
  check_input(plan.hash() == m.plan->hash,
              fmt::format("{}: the configuration{} gives another plan in this program, expected "
                          "that of kvbench {} ({})",
                          manifest_path(csv).string(), with, m.tool.version, m.tool.git_commit));
  const Range rows = plan.row_range(plan.shard_jobs());
  check_input(m.plan->row_ranges == std::vector<Range>{rows},
              fmt::format("{}: row_ranges are not those of this plan, expected [[{}, {}]]",
                          manifest_path(csv).string(), rows.begin, rows.end));
  check_counts(csv, m, rows.size(), m.failures);

  // Resume a log that lacks the jobs of the drawn rows.
  RngStream rng(seed, 0, 0);
  const std::vector<Index> drawn =
      sample_without_replacement(rng, m.rows, std::min(sample, m.rows));
  log_other_jobs(csv, drawn, log_path(options.out), m);
  const RunResult run = run_plan(plan, "kvbench verify", stop);

  out.rows_again = run.rows - run.resumed;
  out.interrupted = run.interrupted;
  if (out.interrupted) {
    return out;
  }
  for (const TableSpec* table : written_tables(m)) {
    compare(table->path(csv), table->path(options.out), table->is_side() ? nullptr : &drawn, out);
  }
  return out;
}

}  // namespace kvbench
