#include "report/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/schema.hpp"
#include "report/sha256.hpp"
#include "report/side_tables.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Part {
  fs::path path;
  Manifest manifest;
  Table table;
  std::vector<Table> sides;  // one for each of side_tables(), in that order

  const PlanInfo& plan() const { return *manifest.plan; }
};

// The tables that a run of this manifest wrote beside the main one.
std::vector<const SideTable*> side_tables(const Manifest& m) {
  std::vector<const SideTable*> out;
  const nlohmann::json& c = m.configuration;
  if (c.is_object() && c.value("protocol", "") == "stream") {
    out.push_back(&steps_table());
  }
  if (c.is_object() && c.value("kept", false)) {
    out.push_back(&kept_table());
  }
  if (c.is_object() && c.value("per_query", false)) {
    out.push_back(&queries_table());
  }
  if (c.is_object() && c.value("layer_errors", false)) {
    out.push_back(&layers_table());
  }
  return out;
}

Part read_part(const fs::path& path) {
  std::optional<FileLock> lock;  // a shard that is still being written is refused
  try {
    lock.emplace(path);
  } catch (const IoError&) {
    // A folder where no lock can be made is one where nobody writes a shard.
  }
  Part part{path, read_manifest(path), read_table(path), {}};
  const Manifest& m = part.manifest;
  if (!m.plan || !m.shard) {
    throw InputError(fmt::format("{}: the manifest names no {}; only files of a --shard run merge",
                                 path.string(), m.plan ? "shard" : "plan"));
  }
  if (m.shard->count < 1 || m.shard->index < 1 || m.shard->index > m.shard->count) {
    throw InputError(
        fmt::format("{}: shard {}/{} is none", path.string(), m.shard->index, m.shard->count));
  }
  if (m.schema != schema_version || part.table.header != schema_header()) {
    throw InputError(fmt::format("{}: schema {} with {} columns, expected schema {} with {}",
                                 path.string(), m.schema, part.table.header.size(), schema_version,
                                 schema_header().size()));
  }
  Index expected = 0;
  for (const Range& r : m.plan->row_ranges) {
    if (r.begin < 0 || r.end < r.begin || r.end > m.plan->rows) {
      throw InputError(fmt::format("{}: row range [{}, {}) lies outside the plan's [0, {})",
                                   path.string(), r.begin, r.end, m.plan->rows));
    }
    expected += r.size();
  }
  const auto rows = static_cast<Index>(part.table.rows.size());
  if (rows != expected) {
    throw InputError(fmt::format("{}: {} rows, expected {}: the shard is {}", path.string(), rows,
                                 expected, rows < expected ? "unfinished; resume it" : "too long"));
  }
  // Rows come in the plan's order only once a run has ended and put them there.
  if (!m.end) {
    throw InputError(fmt::format("{}: the run never ended; resume it", path.string()));
  }
  for (const SideTable* table : side_tables(m)) {
    part.sides.push_back(read_table(table->path(path)));
    if (part.sides.back().header != table->header()) {
      throw InputError(fmt::format("{}: the header differs from that of schema {}",
                                   part.sides.back().source, schema_version));
    }
  }
  return part;
}

std::vector<std::string> hashes(const Manifest& m) {
  std::vector<std::string> out;
  for (const TraceFile& t : m.traces) {
    out.push_back(t.sha256);
  }
  return out;
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
    differ("plan's row count", p.plan().rows, first.plan().rows);
    differ("shard count", p.manifest.shard->count, first.manifest.shard->count);
    differ("trace hash", fmt::format("{}", fmt::join(hashes(p.manifest), " ")),
           fmt::format("{}", fmt::join(hashes(first.manifest), " ")));
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

/// Lines of side table number `side` of all parts in the order of the merged rows; to be called
/// before place_rows takes the tables apart.
std::vector<Fields> place_lines(std::vector<Part>& parts, const SideTable& table,
                                std::size_t side) {
  struct Run {
    Range lines;  // of the part's
    bool used = false;
  };
  std::map<Index, std::vector<Fields>> by_row;  // by the place in the plan of the run's first row
  const std::size_t status = column_index("status");
  const std::size_t tokens = column_index("n_tokens");
  std::map<std::string, Index> counts;  // prompts of one length have as many steps
  for (Part& p : parts) {
    std::unordered_map<std::string, Run> runs;
    std::vector<Fields>& lines = p.sides[side].rows;
    const std::string& source = p.sides[side].source;
    const auto refuse = [&](std::size_t i, std::string_view what) {
      throw InputError(fmt::format("{}: row {}: {}", source, i + 1, what));
    };
    for (std::size_t i = 0; i < lines.size();) {
      const std::string key = table.key(lines[i]);
      const std::size_t begin = i;
      for (++i; i < lines.size() && table.key(lines[i]) == key; ++i) {
        if (table.step(lines[i]) <= table.step(lines[i - 1])) {
          refuse(i, "steps of one row do not ascend");
        }
      }
      const Run run{{static_cast<Index>(begin), static_cast<Index>(i)}};
      if (!runs.emplace(key, run).second) {
        refuse(begin, "steps of one row stand apart");
      }
    }
    std::size_t next = 0;
    for (const Range& r : p.plan().row_ranges) {
      for (Index place = r.begin; place < r.end; ++place) {
        const Fields& row = p.table.rows[next++];
        const auto it = runs.find(table.key_of_row(row));
        if ((it != runs.end()) != has_lines(row[status])) {
          throw InputError(fmt::format("{}: the steps of row {} of the plan {}; resume the shard",
                                       source, place,
                                       it == runs.end() ? "are missing" : "are too many"));
        }
        if (it == runs.end() || it->second.used) {
          continue;
        }
        it->second.used = true;
        const Range from = it->second.lines;
        if (counts.emplace(row[tokens], from.size()).first->second != from.size()) {
          refuse(static_cast<std::size_t>(from.begin), "steps of one row are missing");
        }
        by_row[place].assign(std::make_move_iterator(lines.begin() + from.begin),
                             std::make_move_iterator(lines.begin() + from.end));
      }
    }
    for (const auto& [key, run] : runs) {
      if (!run.used) {
        refuse(static_cast<std::size_t>(run.lines.begin), "a step of no row of the shard");
      }
    }
  }
  std::vector<Fields> out;
  for (auto& [place, lines] : by_row) {
    out.insert(out.end(), std::make_move_iterator(lines.begin()),
               std::make_move_iterator(lines.end()));
  }
  return out;
}

/// The same for a table with one line for all rows of a layer that join with it, where all of them
/// were measured. A shard holds whole layers.
std::vector<Fields> place_layer_lines(std::vector<Part>& parts, const SideTable& table,
                                      std::size_t side) {
  const std::size_t status = column_index("status");
  std::map<Index, Fields> by_row;  // by the place in the plan of the first of the rows
  for (Part& p : parts) {
    const std::string& source = p.sides[side].source;
    std::set<std::tuple<std::string, std::string, std::string>> without;
    for (const nlohmann::json& layer :
         p.manifest.configuration.value("layer_errors_without", nlohmann::json::array())) {
      without.emplace(layer.at(0), layer.at(1), fmt::format("{}", layer.at(2).get<Index>()));
    }
    std::unordered_map<std::string, Fields*> lines;
    for (std::size_t i = 0; i < p.sides[side].rows.size(); ++i) {
      Fields& line = p.sides[side].rows[i];
      if (!lines.emplace(table.key(line), &line).second) {
        throw InputError(fmt::format("{}: row {}: a line stands twice", source, i + 1));
      }
    }
    struct Rows {
      Index first = 0;
      bool measured = true;
    };
    std::unordered_map<std::string, Rows> groups;
    std::size_t next = 0;
    for (const Range& r : p.plan().row_ranges) {
      for (Index place = r.begin; place < r.end; ++place) {
        const Fields& row = p.table.rows[next++];
        Rows& rows = groups.emplace(table.key_of_row(row), Rows{place}).first->second;
        rows.measured = rows.measured && has_lines(row[status]) &&
                        without.count({row[column_index("trace")], row[column_index("prompt")],
                                       row[column_index("layer")]}) == 0;
      }
    }
    for (const auto& [key, rows] : groups) {
      const auto it = lines.find(key);
      if ((it != lines.end()) != rows.measured) {
        throw InputError(fmt::format("{}: the line of row {} of the plan {}; resume the shard",
                                     source, rows.first,
                                     it == lines.end() ? "is missing" : "is too many"));
      }
      if (it != lines.end()) {
        by_row[rows.first] = std::move(*it->second);
        lines.erase(it);
      }
    }
    if (!lines.empty()) {
      throw InputError(fmt::format("{}: a line of no rows of the shard", source));
    }
  }
  std::vector<Fields> out;
  for (auto& [place, line] : by_row) {
    out.push_back(std::move(line));
  }
  return out;
}

/// Every part's rows at their places in the plan.
std::vector<Fields> place_rows(std::vector<Part>& parts) {
  const auto total = static_cast<std::size_t>(parts.front().plan().rows);
  std::vector<Fields> rows(total);
  std::vector<const Part*> owner(total, nullptr);
  for (Part& p : parts) {
    std::size_t next = 0;
    for (const Range& r : p.plan().row_ranges) {
      for (auto i = static_cast<std::size_t>(r.begin); i < static_cast<std::size_t>(r.end); ++i) {
        if (owner[i] != nullptr) {
          throw InputError(fmt::format("{}: row {} of the plan is in {} as well: overlap",
                                       p.path.string(), i, owner[i]->path.string()));
        }
        owner[i] = &p;
        rows[i] = std::move(p.table.rows[next++]);
      }
    }
  }
  const auto gap = std::find(owner.begin(), owner.end(), nullptr);
  if (gap != owner.end()) {
    throw InputError(
        fmt::format("merge: row {} of the plan is in no shard: gap", gap - owner.begin()));
  }
  std::unordered_set<std::string> keys;
  for (std::size_t i = 0; i < total; ++i) {
    if (!keys.insert(row_key(rows[i])).second) {
      throw InputError(fmt::format("{}: row {} of the plan repeats an earlier row's key: overlap",
                                   owner[i]->path.string(), i));
    }
  }
  return rows;
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
  m.plan = PlanInfo{first.plan->hash, first.plan->rows, {{0, first.plan->rows}}};
  m.inputs = nlohmann::json::array();
  for (const Part& p : parts) {
    // The format sorts as text: ISO 8601 in UTC.
    m.start = std::min(m.start, p.manifest.start);
    m.end = std::max(m.end, p.manifest.end);
    m.wall_s += p.manifest.wall_s;
    m.inputs.push_back({{"path", p.path.string()},
                        {"sha256", sha256_file(p.path)},
                        {"manifest", manifest_to_json(p.manifest)}});
  }
  return m;
}

}  // namespace

MergeResult merge_shards(const MergeOptions& options) {
  if (options.shards.empty()) {
    throw InputError("merge: no shards given");
  }
  const auto check_absent = [&](const fs::path& file) {
    if (!options.force && fs::exists(file)) {
      throw InputError(fmt::format("{}: the file exists; --force replaces it", file.string()));
    }
  };
  for (const fs::path& shard : options.shards) {
    std::error_code error;  // equivalent() fails where either is absent, which is no clash
    bool same = fs::equivalent(shard, options.output, error);
    for (const SideTable* table : all_side_tables()) {
      same = same || fs::equivalent(table->path(shard), table->path(options.output), error);
    }
    if (same) {
      throw InputError(fmt::format("{}: the output is one of the shards", shard.string()));
    }
  }
  check_absent(options.output);
  std::vector<Part> parts;
  for (const fs::path& shard : options.shards) {
    parts.push_back(read_part(shard));
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.manifest.shard->index < b.manifest.shard->index;
  });
  check_alike(parts);
  const std::vector<const SideTable*> tables = side_tables(parts.front().manifest);
  for (const Part& p : parts) {
    if (side_tables(p.manifest) != tables) {
      throw InputError(fmt::format("{}: not of the same protocol and tables as {}", p.path.string(),
                                   parts.front().path.string()));
    }
  }
  std::vector<std::vector<Fields>> lines;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    check_absent(tables[i]->path(options.output));
    lines.push_back(tables[i]->steps() ? place_lines(parts, *tables[i], i)
                                       : place_layer_lines(parts, *tables[i], i));
  }
  const std::vector<Fields> rows = place_rows(parts);

  Manifest manifest = merged_manifest(parts, options);
  MergeResult result{static_cast<Index>(rows.size()), 0};
  const std::size_t status_at = column_index("status");
  for (const Fields& row : rows) {
    result.failures += status_kind(row[status_at]) == "failed" ? 1 : 0;
  }
  manifest.rows = result.rows;
  manifest.failures = result.failures;
  const auto mode = options.force ? CsvWriter::Mode::overwrite : CsvWriter::Mode::create;
  CsvWriter writer(options.output, schema_header(), mode);
  for (std::size_t i = 0; i < tables.size(); ++i) {
    CsvWriter(tables[i]->path(options.output), tables[i]->header(), mode).rewrite_sorted(lines[i]);
  }
  writer.rewrite_sorted(rows);
  write_manifest(options.output, manifest);
  return result;
}

}  // namespace kvbench
