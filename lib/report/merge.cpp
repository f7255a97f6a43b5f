#include "report/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "core/output_guard.hpp"
#include "core/sha256.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/merge_lines.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/side_table.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Part {
  fs::path path;
  std::unique_ptr<FileLock> lock;
  Manifest manifest;
  std::unique_ptr<TableReader> table;
  std::vector<std::unique_ptr<SideLines>> sides = {};  // one for each of side_tables(), in order

  const PlanInfo& plan() const { return *manifest.plan; }
  Index rows() const {
    Index n = 0;
    for (const Range& r : plan().row_ranges) {
      n += r.size();
    }
    return n;
  }
};

void check_row_count(const Part& part, Index rows) {
  const Index expected = part.rows();
  if (rows != expected) {
    throw InputError(fmt::format("{}: {} rows, expected {}: the shard is {}", part.path.string(),
                                 rows, expected,
                                 rows < expected ? "unfinished; resume it" : "too long"));
  }
}

// The tables that a run of this manifest wrote beside the main one.
std::vector<const SideTable*> side_tables(const Manifest& m) {
  const nlohmann::json c = m.configuration.is_object() ? m.configuration : nlohmann::json::object();
  std::vector<const SideTable*> out;
  for (const SideTable* table : side_tables_of(m)) {
    if (table == &steps_table()    ? c.value("protocol", "") == "stream"
        : table == &kept_table()   ? c.value("kept", false)
        : table == &layers_table() ? c.value("layer_errors", false)
                                   : c.value("per_query", nlohmann::json(false)) != false) {
      out.push_back(table);
    }
  }
  return out;
}

Part open_part(const fs::path& path) {
  Part part{path, lock_where_possible(path), read_manifest(path), nullptr};
  const Manifest& m = part.manifest;
  const auto check = [&](bool good, const std::string& message) {
    if (!good) {
      throw InputError(fmt::format("{}: {}", path.string(), message));
    }
  };
  check(m.plan && m.shard,
        fmt::format("the manifest names no {}; only files of a --shard run merge",
                    m.plan ? "shard" : "plan"));
  check(1 <= m.shard->index && m.shard->index <= m.shard->count,
        fmt::format("shard {}/{} is none", m.shard->index, m.shard->count));
  part.table = open_run_table(m, result_table_name, path, schema_header());
  check(m.schema == schema_version && part.table->header() == schema_header(),
        fmt::format("schema {} with {} columns, expected schema {} with {}", m.schema,
                    part.table->header().size(), schema_version, schema_header().size()));
  Index last = 0;
  for (const Range& r : m.plan->row_ranges) {
    check(0 <= r.begin && r.begin <= r.end && r.end <= m.plan->rows,
          fmt::format("row range [{}, {}) lies outside the plan's [0, {})", r.begin, r.end,
                      m.plan->rows));
    check(last <= r.begin, fmt::format("row range [{}, {}) begins before {}, the end of the one "
                                       "before it",
                                       r.begin, r.end, last));
    last = r.end;
  }
  // Rows come in the plan's order only once a run has ended and put them there.
  check(m.end.has_value(), "the run never ended; resume it");
  check_row_count(part, m.rows);
  return part;
}

void check_alike(const std::vector<Part>& parts) {
  const Part& first = parts.front();
  std::map<Index, const Part*> by_index;
  for (const Part& p : parts) {
    const auto differ = [&](std::string_view what, const auto& got, const auto& expected) {
      if (got != expected) {
        throw InputError(fmt::format("{}: {} `{}` differs from `{}` in {}", p.path.string(), what,
                                     got, expected, first.path.string()));
      }
    };
    differ("plan", p.plan().hash, first.plan().hash);
    differ("run_id", p.manifest.run_id, first.manifest.run_id);
    differ("plan's row count", p.plan().rows, first.plan().rows);
    differ("shard count", p.manifest.shard->count, first.manifest.shard->count);
    differ("trace hash", fmt::format("{}", fmt::join(trace_hashes(p.manifest), " ")),
           fmt::format("{}", fmt::join(trace_hashes(first.manifest), " ")));
    const auto [it, fresh] = by_index.emplace(p.manifest.shard->index, &p);
    if (!fresh) {
      throw InputError(fmt::format("{}: shard {}/{} is given twice, also by {}", p.path.string(),
                                   p.manifest.shard->index, p.manifest.shard->count,
                                   it->second->path.string()));
    }
  }
  for (Index i = 1; i <= first.manifest.shard->count; ++i) {
    if (!by_index.contains(i)) {
      throw InputError(
          fmt::format("merge: shard {}/{} is missing", i, first.manifest.shard->count));
    }
  }
}

// Rows of the plan that follow each other, and the part that holds them.
struct Stretch {
  Range rows;
  Part* part;
};

std::vector<Stretch> in_plan_order(std::vector<Part>& parts) {
  std::vector<Stretch> out;
  for (Part& part : parts) {
    for (const Range& rows : part.plan().row_ranges) {
      if (rows.size() > 0) {
        out.push_back({rows, &part});
      }
    }
  }
  std::ranges::sort(out, {}, [](const Stretch& s) { return s.rows.begin; });
  Index next = 0;
  const auto gap = [&] {
    throw InputError(fmt::format("merge: row {} of the plan is in no shard: gap", next));
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto& [rows, part] = out[i];
    if (rows.begin < next) {
      throw InputError(fmt::format("{}: row {} of the plan is in {} as well: overlap",
                                   part->path.string(), rows.begin,
                                   out[i - 1].part->path.string()));
    }
    if (rows.begin > next) {
      gap();
    }
    next = rows.end;
  }
  if (next < parts.front().plan().rows) {
    gap();
  }
  return out;
}

/// Reads the rows of all parts in the plan's order, and with each its lines of the side tables,
/// which are put behind theirs. Returns how many rows failed.
Index copy_rows(const std::vector<Stretch>& stretches, std::vector<std::uint64_t>& keys,
                StagedFile& out) {
  const std::size_t status = column_index("status");
  Index failures = 0;
  for (const auto& [rows, part] : stretches) {
    for (Index place = rows.begin; place < rows.end; ++place) {
      if (!part->table->next()) {
        check_row_count(*part, part->table->rows());
      }
      const Fields& row = part->table->row();
      failures += status_kind(row[status]) == "failed" ? 1 : 0;
      keys.push_back(hash_of(row_key(row)));
      out.put(part->table->text());
      for (const auto& side : part->sides) {
        side->add(row, place);
      }
    }
    for (const auto& side : part->sides) {
      side->flush();
    }
  }
  return failures;
}

// Behind the rows that the plan knows.
void check_ends(std::vector<Part>& parts) {
  for (Part& part : parts) {
    while (part.table->next()) {
    }
    check_row_count(part, part.table->rows());
    for (const auto& side : part.sides) {
      side->check_end();
    }
  }
}

// Keys of equal hashes are compared themselves: the rows are read once more.
void check_repeats(const std::vector<Stretch>& stretches, std::vector<std::uint64_t> keys) {
  const std::vector<std::uint64_t> twice = repeated(std::move(keys));
  if (twice.empty()) {
    return;
  }
  std::map<const Part*, std::unique_ptr<TableReader>> tables;
  std::unordered_set<std::string> seen;
  for (const auto& [rows, part] : stretches) {
    std::unique_ptr<TableReader>& table = tables[part];
    table = table ? std::move(table) : std::make_unique<TableReader>(part->path);
    for (Index place = rows.begin; place < rows.end && table->next(); ++place) {
      const std::string key = row_key(table->row());
      if (std::ranges::binary_search(twice, hash_of(key)) && !seen.insert(key).second) {
        throw InputError(fmt::format("{}: row {} of the plan repeats an earlier row's key: overlap",
                                     part->path.string(), place));
      }
    }
  }
}

void check_output(const MergeOptions& options) {
  std::vector<fs::path> inputs;
  for (const fs::path& shard : options.shards) {
    for (const Output& file : run_files(shard)) {
      inputs.push_back(file.path);
    }
  }
  check_outputs(inputs, run_files(options.output));
  check_folder("-o", options.output);
  const std::vector<fs::path> existing = existing_tables(options.output);
  if (!options.overwrite && !existing.empty()) {
    throw InputError(
        fmt::format("{}: the file exists; --overwrite replaces it", existing.front().string()));
  }
}

Manifest merged_manifest(const std::vector<Part>& parts, const MergeOptions& options) {
  const Manifest& first = parts.front().manifest;
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
  m.plan = PlanInfo{first.plan->hash, first.plan->rows, {{0, first.plan->rows}}};
  m.inputs = nlohmann::json::array();
  for (const Part& p : parts) {
    // The format sorts as text: ISO 8601 in UTC.
    m.start = std::min(m.start, p.manifest.start);
    m.end = std::max(m.end, p.manifest.end);
    m.wall_s += p.manifest.wall_s;
    m.inputs.push_back({{"path", p.path.string()},
                        {"sha256", p.manifest.sha256 ? p.manifest.sha256->at(result_table_name)
                                                     : sha256_file(p.path)},
                        {"manifest", manifest_to_json(p.manifest)}});
  }
  return m;
}

}  // namespace

MergeResult merge_shards(const MergeOptions& options) {
  if (options.shards.empty()) {
    throw InputError("merge: no shards given");
  }
  check_output(options);
  std::vector<Part> parts;
  for (const fs::path& shard : options.shards) {
    parts.push_back(open_part(shard));
  }
  std::ranges::sort(parts, {}, [](const Part& p) { return p.manifest.shard->index; });
  check_alike(parts);
  const std::vector<const SideTable*> tables = side_tables(parts.front().manifest);
  for (const Part& p : parts) {
    if (side_tables(p.manifest) != tables) {
      throw InputError(fmt::format("{}: not of the same protocol and tables as {}", p.path.string(),
                                   parts.front().path.string()));
    }
  }
  const std::vector<Stretch> stretches = in_plan_order(parts);
  Manifest manifest = merged_manifest(parts, options);
  // All files are whole before the first has its name, and OUT.csv has it last.
  const auto mode = CsvWriter::Mode::staged;
  const CsvWriter writer(options.output, schema_header(), mode, manifest.run_id);
  remove_leftovers(run_files(options.output));
  std::vector<std::pair<std::string, StagedFile>> files;
  for (const SideTable* table : tables) {
    const CsvWriter side(table->path(options.output), table->header(), mode, manifest.run_id);
    files.emplace_back(table->name(), side.stage());
  }
  files.emplace_back(result_table_name, writer.stage());
  std::vector<LineCounts> counts(tables.size());
  for (Part& p : parts) {
    for (std::size_t i = 0; i < tables.size(); ++i) {
      p.sides.push_back(
          std::make_unique<SideLines>(*tables[i], p.manifest, p.path, files[i].second, counts[i]));
    }
  }
  std::vector<std::uint64_t> keys;
  manifest.failures = copy_rows(stretches, keys, files.back().second);
  manifest.rows = std::ssize(keys);
  check_ends(parts);
  check_repeats(stretches, std::move(keys));
  std::vector<std::pair<std::string, fs::path>> unfinished;
  for (auto& [name, file] : files) {
    file.close();
    unfinished.emplace_back(name, file.partial());
  }
  manifest.sha256 = sha256_of_files(unfinished);
  StagedFile manifest_file = stage_manifest(options.output, manifest);
  check_output(options);  // another run may have ended since
  remove_files(run_files(options.output));
  for (std::size_t i = 0; i < tables.size(); ++i) {
    files[i].second.publish();
  }
  manifest_file.publish();
  files.back().second.publish();
  return {manifest.rows, manifest.failures};
}

}  // namespace kvbench
