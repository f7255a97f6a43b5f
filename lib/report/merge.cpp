#include "report/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.hpp"
#include "core/output_guard.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/sha256.hpp"
#include "report/side_table.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Part {
  fs::path path;
  Manifest manifest;
  Table table;
  std::vector<Index> places;  // of the table's rows in the plan
  std::vector<Table> sides;   // one for each of side_tables(), in that order

  const PlanInfo& plan() const { return *manifest.plan; }
};

// The tables that a run of this manifest wrote beside the main one.
std::vector<const SideTable*> side_tables(const Manifest& m) {
  const nlohmann::json c = m.configuration.is_object() ? m.configuration : nlohmann::json::object();
  std::vector<const SideTable*> out;
  for (const auto& [table, written] :
       {std::pair{&steps_table(), c.value("protocol", "") == "stream"},
        {&kept_table(), c.value("kept", false)},
        {&queries_table(), c.value("per_query", false)},
        {&layers_table(), c.value("layer_errors", false)}}) {
    if (written) {
      out.push_back(table);
    }
  }
  return out;
}

Part read_part(const fs::path& path) {
  const std::unique_ptr<FileLock> lock = lock_where_possible(path);
  Part part{path, read_manifest(path), {}, {}, {}};
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
  part.table = read_run_table(m, result_table_name, path, schema_header());
  check(m.schema == schema_version && part.table.header == schema_header(),
        fmt::format("schema {} with {} columns, expected schema {} with {}", m.schema,
                    part.table.header.size(), schema_version, schema_header().size()));
  Index expected = 0;
  for (const Range& r : m.plan->row_ranges) {
    check(0 <= r.begin && r.begin <= r.end && r.end <= m.plan->rows,
          fmt::format("row range [{}, {}) lies outside the plan's [0, {})", r.begin, r.end,
                      m.plan->rows));
    expected += r.size();
  }
  const auto rows = static_cast<Index>(part.table.rows.size());
  check(rows == expected, fmt::format("{} rows, expected {}: the shard is {}", rows, expected,
                                      rows < expected ? "unfinished; resume it" : "too long"));
  for (const Range& r : m.plan->row_ranges) {
    for (Index place = r.begin; place < r.end; ++place) {
      part.places.push_back(place);
    }
  }
  // Rows come in the plan's order only once a run has ended and put them there.
  check(m.end.has_value(), "the run never ended; resume it");
  for (const SideTable* table : side_tables(m)) {
    part.sides.push_back(read_run_table(m, table->name(), table->path(path), table->header()));
    if (part.sides.back().header != table->header()) {
      throw InputError(fmt::format("{}: the header differs from that of schema {}",
                                   part.sides.back().source, schema_version));
    }
  }
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

// Trace, prompt and layer of the layers that have no line in OUT.layers.csv.
std::set<Fields> layers_without(const Manifest& m) {
  std::set<Fields> out;
  for (const auto& layer : m.configuration.value("layer_errors_without", nlohmann::json::array())) {
    out.insert({layer.at(0), layer.at(1), std::to_string(layer.at(2).get<Index>())});
  }
  return out;
}

/// Lines of side table number `side` of all parts in the order of the merged rows; to be called
/// before place_rows takes the tables apart. A shard holds all rows that share a line.
std::vector<Fields> place_lines(std::vector<Part>& parts, const SideTable& table,
                                std::size_t side) {
  struct Rows {
    Index place = 0;  // of the first of them
    std::string tokens;
    bool measured = true;
  };
  const bool steps = table.steps();
  const std::size_t trace = column_index("trace");
  const std::size_t prompt = column_index("prompt");
  const std::size_t layer = column_index("layer");
  const std::size_t status = column_index("status");
  const std::size_t tokens = column_index("n_tokens");
  std::map<Index, std::vector<Fields>> by_place;
  std::map<std::string, Index> counts;  // prompts of one length have as many steps
  for (Part& p : parts) {
    std::vector<Fields>& lines = p.sides[side].rows;
    const auto refuse = [&](const std::string& what) {
      throw InputError(fmt::format("{}: {}", p.sides[side].source, what));
    };
    std::unordered_map<std::string, Range> runs;  // of lines of one key
    for (std::size_t i = 0; i < lines.size();) {
      const std::string key = table.key(lines[i]);
      const std::size_t begin = i;
      for (++i; i < lines.size() && table.key(lines[i]) == key; ++i) {
        if (table.step(lines[i]) <= table.step(lines[i - 1])) {
          refuse(fmt::format("row {}: {}", i + 1,
                             steps ? "steps of one row do not ascend" : "a line stands twice"));
        }
      }
      if (!runs.emplace(key, Range{static_cast<Index>(begin), static_cast<Index>(i)}).second) {
        refuse(fmt::format("row {}: {}", begin + 1,
                           steps ? "steps of one row stand apart" : "a line stands twice"));
      }
    }
    const std::set<Fields> without = steps ? std::set<Fields>{} : layers_without(p.manifest);
    std::unordered_map<std::string, Rows> rows_of;
    for (std::size_t r = 0; r < p.places.size(); ++r) {
      const Fields& row = p.table.rows[r];
      Rows& rows =
          rows_of.emplace(table.key_of_row(row), Rows{p.places[r], row[tokens]}).first->second;
      rows.measured = rows.measured && has_lines(row[status]) &&
                      !without.contains({row[trace], row[prompt], row[layer]});
    }
    for (const auto& [key, rows] : rows_of) {
      const auto run = runs.find(key);
      if ((run != runs.end()) != rows.measured) {
        refuse(fmt::format("the {} of row {} of the plan {} {}; resume the shard",
                           steps ? "steps" : "line", rows.place, steps ? "are" : "is",
                           rows.measured ? "missing" : "too many"));
      }
      if (run == runs.end()) {
        continue;
      }
      const Range from = run->second;
      if (counts.emplace(rows.tokens, from.size()).first->second != from.size()) {
        refuse(fmt::format("row {}: steps of one row are missing", from.begin + 1));
      }
      by_place[rows.place].assign(std::make_move_iterator(lines.begin() + from.begin),
                                  std::make_move_iterator(lines.begin() + from.end));
      runs.erase(run);
    }
    if (!runs.empty()) {
      refuse(fmt::format("row {}: {} of the shard", runs.begin()->second.begin + 1,
                         steps ? "a step of no row" : "a line of no rows"));
    }
  }
  std::vector<Fields> out;
  for (auto& [place, lines] : by_place) {
    std::move(lines.begin(), lines.end(), std::back_inserter(out));
  }
  return out;
}

/// Every part's rows at their places in the plan.
std::vector<Fields> place_rows(std::vector<Part>& parts) {
  std::vector<Fields> rows(parts.front().plan().rows);
  std::vector<const Part*> owner(rows.size(), nullptr);
  for (Part& p : parts) {
    for (std::size_t r = 0; r < p.places.size(); ++r) {
      const Index place = p.places[r];
      if (owner[place] != nullptr) {
        throw InputError(fmt::format("{}: row {} of the plan is in {} as well: overlap",
                                     p.path.string(), place, owner[place]->path.string()));
      }
      owner[place] = &p;
      rows[place] = std::move(p.table.rows[r]);
    }
  }
  const auto gap = std::find(owner.begin(), owner.end(), nullptr);
  if (gap != owner.end()) {
    throw InputError(
        fmt::format("merge: row {} of the plan is in no shard: gap", gap - owner.begin()));
  }
  std::unordered_set<std::string> keys;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!keys.insert(row_key(rows[i])).second) {
      throw InputError(fmt::format("{}: row {} of the plan repeats an earlier row's key: overlap",
                                   owner[i]->path.string(), i));
    }
  }
  return rows;
}

void check_output(const MergeOptions& options) {
  std::vector<fs::path> inputs;
  for (const fs::path& shard : options.shards) {
    for (const Output& file : run_files(shard)) {
      inputs.push_back(file.path);
    }
  }
  check_outputs(inputs, run_files(options.output));
  const std::vector<fs::path> existing = existing_tables(options.output);
  if (!options.force && !existing.empty()) {
    throw InputError(
        fmt::format("{}: the file exists; --force replaces it", existing.front().string()));
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
  check_output(options);
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
    lines.push_back(place_lines(parts, *tables[i], i));
  }
  const std::vector<Fields> rows = place_rows(parts);

  Manifest manifest = merged_manifest(parts, options);
  manifest.rows = static_cast<Index>(rows.size());
  manifest.failures =
      std::count_if(rows.begin(), rows.end(), [at = column_index("status")](const Fields& row) {
        return status_kind(row[at]) == "failed";
      });
  // All files are whole before the first has its name, and OUT.csv has it last.
  const auto mode = CsvWriter::Mode::staged;
  const CsvWriter writer(options.output, schema_header(), mode, manifest.run_id);
  remove_unfinished(run_files(options.output));
  std::vector<StagedFile> files;
  std::vector<std::pair<std::string, fs::path>> unfinished;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const fs::path path = tables[i]->path(options.output);
    files.push_back(CsvWriter(path, tables[i]->header(), mode, manifest.run_id).stage(lines[i]));
    unfinished.emplace_back(tables[i]->name(), unfinished_path(resolved_path(path)));
  }
  StagedFile table = writer.stage(rows);
  unfinished.emplace_back(result_table_name, unfinished_path(resolved_path(options.output)));
  manifest.sha256 = sha256_of_files(unfinished);
  files.push_back(stage_manifest(options.output, manifest));
  files.push_back(std::move(table));
  check_output(options);  // another run may have ended since
  remove_files(run_files(options.output));
  for (StagedFile& file : files) {
    file.publish();
  }
  return {manifest.rows, manifest.failures};
}

}  // namespace kvbench
