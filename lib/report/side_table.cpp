#include "report/side_table.hpp"

#include <fmt/format.h>

#include <charconv>
#include <iterator>
#include <utility>

#include "core/error.hpp"

namespace kvbench {
namespace {

std::vector<std::string_view> schema_and_keys() {
  std::vector<std::string_view> out = key_columns();
  out.insert(out.begin(), "schema");
  return out;
}

}  // namespace

SideTable::SideTable(std::string_view name, std::span<const std::string_view> joined,
                     std::vector<ColumnDoc> own, std::span<const std::string_view> behind)
    : name_(name), own_(std::move(own)) {
  for (const std::string_view column : joined) {
    joined_.push_back(column_index(column));
    header_.emplace_back(column);
    per_query_head_ = per_query_head_ || column == "q_head";
  }
  for (const ColumnDoc& column : own_) {
    header_.emplace_back(column.name);
  }
  for (const std::string_view column : behind) {
    behind_.push_back(column_index(column));
    header_.emplace_back(column);
  }
}

std::filesystem::path SideTable::path(const std::filesystem::path& csv) const {
  std::filesystem::path out = csv;
  if (out.extension() == ".csv") {
    out.replace_extension();
  }
  out += "." + name_ + ".csv";
  return out;
}

void SideTable::check_width(std::span<const std::string> line) const {
  if (line.size() != header_.size()) {
    throw InputError(
        fmt::format("{}: a row has {} fields, expected {}", name_, line.size(), header_.size()));
  }
}

Fields SideTable::line_of(std::span<const std::string> row, const Fields& own) const {
  Fields out;
  out.reserve(header_.size());
  for (const std::size_t column : joined_) {
    out.push_back(row[column]);
  }
  out.insert(out.end(), own.begin(), own.end());
  for (const std::size_t column : behind_) {
    out.push_back(row[column]);
  }
  check_width(out);
  return out;
}

std::string SideTable::key(std::span<const std::string> line) const {
  check_width(line);
  std::string key;
  for (const std::string& field : line.first(joined_.size())) {
    append_to_key(key, field);
  }
  return key;
}

std::string SideTable::key_of_row(std::span<const std::string> row) const {
  std::string key;
  for (const std::size_t column : joined_) {
    append_to_key(key, row[column]);
  }
  return key;
}

Index SideTable::step(std::span<const std::string> line) const {
  check_width(line);
  if (!steps()) {
    return 0;
  }
  const std::string& text = line[joined_.size()];
  Index position = 0;
  if (!parse_number(text, position)) {
    throw InputError(fmt::format("{}: {} `{}`, expected a number", name_, own_.front().name, text));
  }
  return position;
}

bool has_lines(std::string_view status) {
  const std::string_view kind = status_kind(status);
  return kind == "ok" || kind == "degenerate";
}

const SideTable& steps_table() {
  static const SideTable table(
      "steps", key_columns(),
      {{"step", "", "position of the query, 0-based"},
       {"rel_error", "fraction",
        "|z-a| / |a| of this query; `nan` where nothing was held to attend to"},
       {"bytes", "bytes", "sinks, recent window and what the method holds at this step"}});
  return table;
}

const SideTable& kept_table() {
  static const SideTable table(
      "kept",
      std::vector<std::string_view>{"schema", "trace", "prompt", "layer", "kv_head", "algorithm",
                                    "params", "protocol", "sink", "recent", "scores", "device",
                                    "seed", "n_tokens", "budget_requested"},
      {{"step", "",
        "position of the query that met this cache, 0-based: the last one under `prefill`; under "
        "`stream` every position `j` with `j + 1` divisible by `--eval-every`, and the last"},
       {"tokens", "",
        "positions, ascending, as ranges with both ends included: `0-255 300 305-310`; empty: "
        "none"}},
      std::vector<std::string_view>{"model", "dtype", "precision"});
  return table;
}

const SideTable& queries_table() {
  static const SideTable table(
      "queries",
      std::vector<std::string_view>{"trace", "prompt", "layer", "q_head", "algorithm", "params",
                                    "seed", "budget_requested"},
      {{"first", "queries",
        "offset of the bin's first query: its number among the evaluated ones, from 0, or how far "
        "it lies behind the prompt's end"},
       {"last", "queries", "offset of the bin's last query"},
       {"queries", "queries", "how many the bin has: `last` - `first` + 1"},
       {"rel_error_mean", "fraction", "mean over the bin's queries of |z-a| / |a|"},
       {"rel_error_p50", "fraction", "median over the bin's queries of |z-a| / |a|"}});
  return table;
}

const SideTable& every_query_table() {
  static const SideTable table(
      "queries", schema_and_keys(),
      {{"step", "", "position of the query in the prompt, 0-based"},
       {"offset", "queries",
        "number of the query among the evaluated ones, from 0: how far it lies behind the prompt's "
        "end"},
       {"rel_error", "fraction", "|z-a| / |a| of this query"}});
  return table;
}

const SideTable& layers_table() {
  static const SideTable table = [] {
    std::vector<std::string_view> joined = schema_and_keys();
    std::erase(joined, "q_head");
    return SideTable("layers", joined,
                     {{"out_rel_error", "fraction",
                       "|D|_F / |sum_h W_h a_h|_F; 0 for 0/0, else `inf` where the divisor is 0"},
                      {"residual_rel_error", "fraction",
                       "sqrt(sum_j |D_j|^2 / sum_j r_j^2); empty where the trace has no norms"}});
  }();
  return table;
}

std::string ranges_text(std::span<const Index> tokens) {
  std::string out;
  for (std::size_t i = 0; i < tokens.size();) {
    std::size_t last = i;
    while (last + 1 < tokens.size() && tokens[last + 1] == tokens[last] + 1) {
      ++last;
    }
    fmt::format_to(std::back_inserter(out), "{}{}", out.empty() ? "" : " ", tokens[i]);
    if (last > i) {
      fmt::format_to(std::back_inserter(out), "-{}", tokens[last]);
    }
    i = last + 1;
  }
  return out;
}

std::vector<Index> parse_ranges(std::string_view text, Index n) {
  std::vector<Index> out;
  for (bool more = !text.empty(); more;) {
    const std::size_t space = text.find(' ');
    const std::string_view part = text.substr(0, space);
    const std::size_t dash = part.find('-');
    Index first = 0;
    Index last = 0;
    if (!parse_number(part.substr(0, dash), first) ||
        !parse_number(dash == std::string_view::npos ? part : part.substr(dash + 1), last) ||
        first < 0 || last < first || last >= n || (!out.empty() && first <= out.back())) {
      throw InputError(
          fmt::format("kept tokens `{}`, expected ascending positions below {} and ranges "
                      "a-b of them, with single spaces",
                      part, n));
    }
    for (Index i = first; i <= last; ++i) {
      out.push_back(i);
    }
    more = space != std::string_view::npos;
    text.remove_prefix(more ? space + 1 : text.size());
  }
  return out;
}

}  // namespace kvbench
