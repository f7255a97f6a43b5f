#include "replay/finished_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "core/error.hpp"
#include "replay/blank_row.hpp"
#include "replay/windows.hpp"
#include "report/query_bins.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// A line's file offset and status kind, packed. Lines of side tables have the first kind.
constexpr std::array<std::string_view, 5> kKinds{"", "ok", "degenerate", "infeasible", "failed"};
constexpr int kOffsetBits = 56;

std::uint64_t packed(std::uint64_t offset, std::string_view kind) {
  const auto* const at = std::ranges::find(kKinds, kind);
  const auto number = static_cast<std::uint64_t>(at == kKinds.end() ? 0 : at - kKinds.begin());
  return number << kOffsetBits | offset;
}

std::uint64_t offset_of(std::uint64_t line) {
  return line & ((std::uint64_t{1} << kOffsetBits) - 1);
}

std::string_view kind_of(std::uint64_t line) {
  return kKinds[line >> kOffsetBits];
}

}  // namespace

std::vector<Index> side_positions(const PlanSpec& plan, const TableSpec* table,
                                  const LayerMeta& l) {
  if (!table->steps()) {
    return {0};
  }
  if (table == &queries_table()) {
    std::vector<Index> out;
    for (const QueryBin& bin : query_bins(windows_of(plan.options, l).queries)) {
      out.push_back(bin.first);
    }
    return out;
  }
  if (table == &every_query_table()) {
    return positions_of({l.n - windows_of(plan.options, l).queries, l.n});
  }
  return table == &steps_table() ? stream_steps(plan.options, l.n) : kept_steps(plan.options, l.n);
}

std::vector<const TableSpec*> side_tables(const PlanSpec& plan) {
  std::vector<const TableSpec*> out;
  for (const auto& [table, written] :
       {std::pair{&steps_table(), plan.stream()},
        {&kept_table(), plan.options.kept},
        {&queries_table(), plan.options.per_query == PerQuery::bins},
        {&every_query_table(), plan.options.per_query == PerQuery::all}}) {
    if (written) {
      out.push_back(table);
    }
  }
  return out;
}

FinishedTable::FinishedTable(const PlanSpec& plan, const TableSpec* table)
    : plan_(plan), table_(table), jobs_(plan.shard_jobs()) {
  const Fields& header = table->header();
  for (std::size_t i = 0; i < table->joined(); ++i) {
    const std::size_t column = column_index(header[i]);
    if (table->is_side() || columns()[column].key) {
      compared_.emplace_back(i, column);
    }
  }
  const auto at = [&](std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(header, name) - header.begin());
  };
  unit_cells_ = {at("trace"), at("prompt"), at("layer")};
  for (const char* head : {"q_head", "kv_head"}) {
    if (at(head) < header.size() && unit_cells_.size() == 3) {
      unit_cells_.push_back(at(head));
    }
  }
  setting_cells_ = {at("algorithm"), at("params"), at("budget_requested")};
  seed_cell_ = at("seed");
}

// Fills what add() needs. Called for the first line.
void FinishedTable::list_slots() {
  const auto entries = static_cast<Index>(plan_.entries.size());
  Index slots = 0;
  first_unit_ = jobs_.begin / entries;
  for (Index u = first_unit_; u * entries < jobs_.end; ++u) {
    const Unit& unit = plan_.units[u];
    const LayerMeta& layer = plan_.layer_meta(unit);
    std::vector<Index>& steps = steps_[{layer.n, layer.nq}];
    if (steps.empty()) {
      steps = side_positions(plan_, table_, layer);
    }
    const bool each_head = table_->per_query_head();
    Index rows = 0;
    for (const Index q_head : unit.q_heads) {
      const Fields row = to_fields(blank_row(plan_, unit, plan_.entries.front(), q_head));
      std::string key;
      for (const std::size_t cell : unit_cells_) {
        append_to_key(key, row[row_column(cell)]);
      }
      rows += units_at_.try_emplace(std::move(key), u, rows).second ? 1 : 0;
      if (!each_head) {
        break;
      }
    }
    const Index first = std::max(jobs_.begin, u * entries);
    units_.push_back({slots, first, rows, &steps});
    slots += (std::min(jobs_.end, (u + 1) * entries) - first) * units_.back().per_job();
  }
  lines_.resize(static_cast<std::size_t>(slots));

  const std::vector<Entries::Setting>& settings = plan_.entries.settings();
  const auto add = [&](std::size_t variant, const Variant& v) {
    for (std::size_t s = 0; s < settings.size(); ++s) {
      if (settings[s].first.variant == variant) {
        std::string key;
        append_to_key(key, v.label());
        append_to_key(key, v.label_params());
        append_to_key(key, field_text(settings[s].first.budget));
        std::vector<std::size_t>& at = settings_at_[key];
        if (at.empty() || at.back() != s) {  // several layers may resolve it alike
          at.push_back(s);
        }
      }
    }
  };
  for (std::size_t v = 0; v < plan_.variants.size(); ++v) {
    add(v, plan_.variants[v]);
  }
  for (const auto& [where, variant] : plan_.resolved) {
    add(std::get<std::size_t>(where), variant);
  }
}

std::size_t FinishedTable::row_column(std::size_t cell) const {
  return column_index(table_->header()[cell]);
}

void FinishedTable::refuse(const std::string& what, const Fields& line) const {
  throw InputError(fmt::format(
      "{}: {} (algorithm {}, params {}, seed {}); expected the options of the run to resume",
      table_->path(plan_.options.out).string(), what, line[setting_cells_[0]],
      line[setting_cells_[1]], line[seed_cell_]));
}

// Whether the line belongs to the row of this unit, head and entry.
bool FinishedTable::is_of(const Fields& line, Index unit, Index q_head, const Entry& entry,
                          std::size_t setting) {
  if (expected_of_ != std::pair{unit, setting}) {
    expected_ = to_fields(blank_row(plan_, plan_.units[unit], entry, q_head));
    expected_of_ = {unit, setting};
  }
  static const std::size_t head_at = column_index("q_head");
  static const std::size_t seed_at = column_index("seed");
  expected_[head_at] = field_text(q_head);
  expected_[seed_at] = field_text(entry.seed);
  return std::ranges::all_of(
      compared_, [&](const auto& pair) { return line[pair.first] == expected_[pair.second]; });
}

std::optional<std::pair<Index, Index>> FinishedTable::find(const Fields& line) {
  const auto key_of = [&](const std::vector<std::size_t>& cells) {
    std::string key;
    for (const std::size_t cell : cells) {
      append_to_key(key, line[cell]);
    }
    return key;
  };
  const auto unit = units_at_.find(key_of(unit_cells_));
  const auto settings = settings_at_.find(key_of(setting_cells_));
  std::uint64_t seed = 0;
  if (unit == units_at_.end() || settings == settings_at_.end() ||
      !parse_number(line[seed_cell_], seed)) {
    return std::nullopt;
  }
  const auto [u, row] = unit->second;
  for (const std::size_t s : settings->second) {
    const Entries::Setting& setting = plan_.entries.settings()[s];
    const auto at = std::ranges::lower_bound(*setting.seeds, seed);
    Entry entry = setting.first;
    entry.seed = seed;
    if (at == setting.seeds->end() || *at != seed ||
        !is_of(line, u, plan_.units[u].q_heads[row], entry, s)) {
      continue;
    }
    const Index job = u * static_cast<Index>(plan_.entries.size()) +
                      static_cast<Index>(setting.begin) + (at - setting.seeds->begin());
    if (jobs_.contains(job)) {
      return std::pair{job, row};
    }
  }
  return std::nullopt;
}

void FinishedTable::add(const TableReader& reader) {
  if (units_.empty()) {
    list_slots();
  }
  const Fields& line = reader.row();
  // Earlier versions wrote this row when memory ran out. Run the job again.
  if (!table_->is_side() && line[column_index("status")] == "failed: std::bad_alloc") {
    ++added_;  // without count_: the line is dropped
    return;
  }
  const bool steps = table_->steps();
  const auto found = find(line);
  if (!found) {
    refuse(fmt::format("{} outside this plan", !table_->is_side() ? "row"
                                               : steps            ? "step of a row"
                                                                  : "line of rows"),
           line);
  }
  const auto [job, row] = *found;
  const Slots& slots = slots_of(job);
  const Index position = steps ? table_->step(line) : 0;
  const auto step = std::ranges::lower_bound(*slots.steps, position);
  if (step == slots.steps->end() || *step != position) {
    refuse(fmt::format("step {} outside this plan", position), line);
  }
  const Index slot = slots.begin + (job - slots.job) * slots.per_job() +
                     row * std::ssize(*slots.steps) + (step - slots.steps->begin());
  std::uint64_t& at = lines_[slot];
  if (at != 0) {
    refuse(fmt::format("duplicate {}", !table_->is_side() ? "row" : steps ? "step" : "line"), line);
  }
  static const std::size_t status = column_index("status");
  at = packed(reader.begin(), table_->is_side() ? "" : status_kind(line[status]));
  ++added_;
  ++count_;
  in_order_ = in_order_ && last_ < slot;
  last_ = slot;
}

const FinishedTable::Slots& FinishedTable::slots_of(Index job) const {
  return units_[job / static_cast<Index>(plan_.entries.size()) - first_unit_];
}

std::span<const std::uint64_t> FinishedTable::lines_of(Index job) const {
  if (lines_.empty()) {
    return {};
  }
  const Slots& slots = slots_of(job);
  const Index begin = slots.begin + (job - slots.job) * slots.per_job();
  return std::span(lines_).subspan(begin, slots.per_job());
}

bool FinishedTable::has(Index job) const {
  return std::ranges::any_of(lines_of(job), [](std::uint64_t line) { return line != 0; });
}

bool FinishedTable::whole(Index job) const {
  const std::span<const std::uint64_t> lines = lines_of(job);
  return !lines.empty() && std::ranges::count(lines, 0U) == 0;
}

std::string_view FinishedTable::status(Index job) const {
  return kind_of(lines_of(job).front());
}

void FinishedTable::forget(Index job) {
  const std::span<const std::uint64_t> lines = lines_of(job);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::uint64_t& line = lines_[lines.data() - lines_.data() + i];
    count_ -= line == 0 ? 0 : 1;
    line = 0;
  }
}

Index FinishedTable::count_of(std::string_view status) const {
  return std::ranges::count_if(
      lines_, [&](std::uint64_t line) { return line != 0 && kind_of(line) == status; });
}

void FinishedTable::rewrite(CsvWriter& writer) const {
  TableLines lines(writer.path());
  StagedFile file = writer.stage();
  for (const std::uint64_t line : lines_) {
    if (line != 0) {
      std::string_view text = lines.at(offset_of(line));
      std::string plain;
      if (text.ends_with("\r\n")) {
        plain = fmt::format("{}\n", text.substr(0, text.size() - 2));
        text = plain;
      }
      file.put(writer.holds_earlier() ? writer.line_of_this_run(text) : text);
    }
  }
  writer.replace(std::move(file));
}

}  // namespace kvbench
