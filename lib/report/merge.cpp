#include "report/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "core/sha256.hpp"
#include "report/job_log.hpp"
#include "report/journal.hpp"
#include "report/manifest.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct MergeInput {
  fs::path path;
  bool log = false;
  std::unique_ptr<JobRecords> records;

  const Manifest& manifest() const { return records->manifest(); }
};

bool is_log(const fs::path& path) {
  return journal_kind().matches(path);
}

Shard shard_of(const Manifest& m) {
  return m.shard.value_or(Shard{1, 1});
}

// `alone`: a run of --shard 1/1 is an undivided one.
MergeInput open_part(const fs::path& path, bool salvage, bool alone) {
  MergeInput part{path, is_log(path), nullptr};
  part.records = part.log
                     ? open_log(path, salvage ? Journal::Damage::skip : Journal::Damage::refuse)
                     : open_tables(path);
  const Manifest& m = part.manifest();
  check_traces_unchanged(m, path);
  check_input(part.log || m.shard || alone,
              path.string() + ": the manifest has no shard, expected that of a --shard run");
  const auto [index, count] = shard_of(m);
  check_input(
      1 <= index && index <= count,
      fmt::format("{}: got shard {}/{}, expected 1 to the count", path.string(), index, count));
  return part;
}

void check_alike(const std::vector<MergeInput>& parts) {
  const MergeInput& first = parts.front();
  std::map<Index, const MergeInput*> by_index;
  for (const MergeInput& p : parts) {
    const auto differ = [&](std::string_view what, const auto& got, const auto& expected) {
      if (got != expected) {
        throw InputError(fmt::format("{}: {} `{}` differs from `{}` in {}", p.path.string(), what,
                                     got, expected, first.path.string()));
      }
    };
    const Manifest& m = p.manifest();
    const Manifest& of_first = first.manifest();
    differ("plan", m.plan->hash, of_first.plan->hash);
    differ("run_id", m.run_id, of_first.run_id);
    differ("plan's row count", m.plan->rows, of_first.plan->rows);
    differ("shard count", shard_of(m).count, shard_of(of_first).count);
    differ("trace hash", fmt::format("{}", fmt::join(trace_hashes(m), " ")),
           fmt::format("{}", fmt::join(trace_hashes(of_first), " ")));
    check_input(written_tables(m) == written_tables(of_first),
                fmt::format("{}: its side tables differ from those of {}", p.path.string(),
                            first.path.string()));
    const auto [index, count] = shard_of(m);
    const auto [it, fresh] = by_index.emplace(index, &p);
    check_input(fresh || (p.log && it->second->log),
                fmt::format("{}: duplicate shard {}/{}, also in {}", p.path.string(), index, count,
                            it->second->path.string()));
  }
  const bool logs = std::ranges::any_of(parts, &MergeInput::log);
  const Index count = shard_of(first.manifest()).count;
  for (Index i = 1; i <= count && !logs; ++i) {
    check_input(by_index.contains(i), fmt::format("merge: shard {}/{} is missing", i, count));
  }
}

// The records of all parts in the plan's order.
void merge_records(const std::vector<MergeInput>& parts, RunTables& out) {
  using Next = std::pair<Index, std::size_t>;  // place, part
  std::vector<JobRecord> records(parts.size());
  std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
  const auto read = [&](std::size_t part) {
    if (parts[part].records->next(records[part])) {
      queue.emplace(records[part].place, part);
    }
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    read(i);
  }
  const bool logs = std::ranges::any_of(parts, &MergeInput::log);
  Index next = 0;
  const MergeInput* before = nullptr;
  const auto gap = [&](Index place) {
    if (place > next && !logs) {
      throw InputError(fmt::format("merge: no shard contains row {} of the plan", next));
    }
  };
  while (!queue.empty()) {
    const auto [place, part] = queue.top();
    queue.pop();
    if (place < next) {
      throw InputError(fmt::format("{}: row {} of the plan is also in {}: overlap",
                                   parts[part].path.string(), place, before->path.string()));
    }
    gap(place);
    out.put(records[part]);
    next = place + records[part].rows();
    before = &parts[part];
    read(part);
  }
  gap(parts.front().manifest().plan->rows);
}

void check_output(const MergeOptions& options) {
  std::vector<fs::path> inputs;
  for (const fs::path& input : options.inputs) {
    if (is_log(input)) {
      inputs.push_back(input);
      continue;
    }
    for (const Output& file : run_files(input)) {
      inputs.push_back(file.path);
    }
  }
  check_outputs(inputs, run_files(options.output));
  check_folder("-o", options.output);
  const std::vector<fs::path> existing = existing_tables(options.output);
  if (!options.overwrite && !existing.empty()) {
    throw InputError(fmt::format("{}: the file exists, expected --overwrite or another name",
                                 existing.front().string()));
  }
}

Manifest merged_manifest(const std::vector<MergeInput>& parts, const MergeOptions& options) {
  const Manifest& first = parts.front().manifest();
  Manifest m = begin_manifest(options.command_line, first.configuration);
  if (m.configuration.is_object()) {
    m.configuration.erase("shard");
  }
  m.traces = first.traces;
  m.threads = first.threads;
  m.gpu = first.gpu;
  m.driver = first.driver;
  m.start = first.start;
  m.end = first.end;
  m.run_id = first.run_id;
  m.plan = PlanInfo{
      first.plan->hash, first.plan->rows, {{0, first.plan->rows}}, first.plan->budgets_of_cache};
  m.inputs = nlohmann::json::array();
  for (const MergeInput& p : parts) {
    const Manifest& part = p.manifest();
    m.start = std::min(m.start, part.start);
    m.end = m.end && part.end ? std::max(m.end, part.end) : std::nullopt;
    m.wall_s += part.wall_s;
    m.inputs.push_back(
        {{"path", p.path.string()},
         {"sha256", p.log ? sha256_file(p.path) : part.sha256->at(main_table().name())},
         {"manifest", manifest_to_json(part)}});
  }
  return m;
}

}  // namespace

MergeResult merge_runs(const MergeOptions& options) {
  check_input(!options.inputs.empty(), "merge: got no tables or logs");
  check_output(options);
  std::vector<MergeInput> parts;
  std::set<fs::path> seen;
  for (const fs::path& input : options.inputs) {
    // Its lock, held from the first time on, would pass for another run's.
    check_input(seen.insert(resolved_path(input)).second,
                fmt::format("{}: is given twice, expected different files", input.string()));
    parts.push_back(open_part(input, options.salvage, options.inputs.size() == 1));
  }
  std::ranges::stable_sort(parts, {},
                           [](const MergeInput& p) { return shard_of(p.manifest()).index; });
  check_alike(parts);
  Manifest manifest = merged_manifest(parts, options);
  const FileLock lock(options.output);
  remove_leftovers(run_files(options.output));
  RunTables tables(options.output, written_tables(manifest));
  merge_records(parts, tables);
  check_output(options);  // again: another run may have ended since
  const bool whole =
      tables.rows() == manifest.plan->rows &&
      std::ranges::all_of(parts, [](const MergeInput& p) { return p.records->whole(); });
  if (whole && !manifest.end) {
    manifest.end = utc_now();  // as the run would have had: --resume finds finished tables
  }
  tables.publish(manifest, whole);
  // Of an earlier run there; --resume would go on with it in place of these tables.
  remove_files({{log_path(options.output), journal_kind()},
                {layers_journal_path(options.output), journal_kind()}});
  return {tables.rows(), tables.count("failed"), manifest.plan->rows};
}

}  // namespace kvbench
