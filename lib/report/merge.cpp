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
#include "report/result_rows.hpp"
#include "report/row_crc.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Part {
  fs::path path;
  std::unique_ptr<FileLock> lock;
  Manifest manifest;
  std::unique_ptr<TableReader> table;
  std::vector<std::unique_ptr<SideLines>> sides = {};  // as side_tables()

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
                                 rows < expected ? "unfinished, resume it" : "too long"));
  }
}

// The side tables that the run of this manifest wrote.
std::vector<const TableSpec*> side_tables(const Manifest& m) {
  const nlohmann::json c = m.configuration.is_object() ? m.configuration : nlohmann::json::object();
  std::vector<const TableSpec*> out;
  for (const TableSpec* table : side_tables_of(m)) {
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
  check(m.plan && m.shard, fmt::format("the manifest has no {}, expected that of a --shard run",
                                       m.plan ? "shard" : "plan"));
  check(1 <= m.shard->index && m.shard->index <= m.shard->count,
        fmt::format("got shard {}/{}, expected 1 to the count", m.shard->index, m.shard->count));
  part.table = open_run_table(m, main_table(), path);
  check(m.schema == schema_version,
        fmt::format("schema {}, expected {}", m.schema, schema_version));
  check_header(part.table->header(), schema_header(), path.string());
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
  // Rows are in the plan's order only after the run has ended.
  check(m.end.has_value(), "the run has not ended, resume it");
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
      throw InputError(fmt::format("{}: duplicate shard {}/{}, also in {}", p.path.string(),
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

// Consecutive rows of the plan, and the part that holds them.
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
    throw InputError(fmt::format("merge: no shard contains row {} of the plan", next));
  };
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto& [rows, part] = out[i];
    if (rows.begin < next) {
      throw InputError(fmt::format("{}: row {} of the plan is also in {}: overlap",
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

// Copies the rows of all parts, and their lines of side tables, in the plan's order. Returns how
// many rows failed.
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
      keys.push_back(hash_of(main_table().key(row)));
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

// No part may have more rows or lines than the plan.
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
    throw InputError(fmt::format("{}: the file exists, expected --overwrite or another name",
                                 existing.front().string()));
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
    m.start = std::min(m.start, p.manifest.start);
    m.end = std::max(m.end, p.manifest.end);
    m.wall_s += p.manifest.wall_s;
    m.inputs.push_back({{"path", p.path.string()},
                        {"sha256", p.manifest.sha256 ? p.manifest.sha256->at(main_table().name())
                                                     : sha256_file(p.path)},
                        {"manifest", manifest_to_json(p.manifest)}});
  }
  return m;
}

}  // namespace

MergeResult merge_shards(const MergeOptions& options) {
  if (options.shards.empty()) {
    throw InputError("merge: got no shards");
  }
  check_output(options);
  std::vector<Part> parts;
  for (const fs::path& shard : options.shards) {
    parts.push_back(open_part(shard));
  }
  std::ranges::sort(parts, {}, [](const Part& p) { return p.manifest.shard->index; });
  check_alike(parts);
  const std::vector<const TableSpec*> tables = side_tables(parts.front().manifest);
  for (const Part& p : parts) {
    if (side_tables(p.manifest) != tables) {
      throw InputError(fmt::format("{}: its side tables differ from those of {}", p.path.string(),
                                   parts.front().path.string()));
    }
  }
  const std::vector<Stretch> stretches = in_plan_order(parts);
  Manifest manifest = merged_manifest(parts, options);
  // All files are complete before the first is published; OUT.csv is the last.
  const auto mode = CsvWriter::Mode::staged;
  const CsvWriter writer(options.output, schema_header(), mode, manifest.run_id);
  remove_leftovers(run_files(options.output));
  std::vector<std::pair<std::string, StagedFile>> files;
  for (const TableSpec* table : tables) {
    const CsvWriter side(table->path(options.output), table->header(), mode, manifest.run_id);
    files.emplace_back(table->name(), side.stage());
  }
  files.emplace_back(main_table().name(), writer.stage());
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
  std::vector<ResultTable> tables_again;
  for (const Part& p : parts) {
    tables_again.push_back([&p] { return std::make_unique<TableReader>(p.path); });
  }
  std::vector<RowFilter> no_filters;
  check_duplicates(tables_again, no_filters, std::move(keys));
  std::vector<std::pair<std::string, fs::path>> unfinished;
  for (auto& [name, file] : files) {
    file.close();
    unfinished.emplace_back(name, file.partial());
  }
  manifest.sha256 = sha256_of_files(unfinished);
  StagedFile manifest_file = stage_manifest(options.output, manifest);
  check_output(options);  // again: another run may have ended since
  remove_files(run_files(options.output));
  for (std::size_t i = 0; i < tables.size(); ++i) {
    files[i].second.publish();
  }
  manifest_file.publish();
  files.back().second.publish();
  return {manifest.rows, manifest.failures};
}

}  // namespace kvbench
