#include "report/table_spec.hpp"

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

TableSpec::TableSpec()
    : name_("table"),
      header_(schema_header()),
      per_query_head_(true),
      run_at_(column_index("run_id")) {
  for (std::size_t i = 0; i < header_.size(); ++i) {
    joined_.push_back(i);
    if (columns()[i].key) {
      row_key_.push_back(i);
    }
  }
  line_key_ = row_key_;
}

TableSpec::TableSpec(std::string_view name, std::span<const std::string_view> joined,
                     std::vector<ColumnDoc> own, std::span<const std::string_view> last)
    : name_(name), own_(std::move(own)) {
  for (const std::string_view column : joined) {
    line_key_.push_back(joined_.size());
    joined_.push_back(column_index(column));
    header_.emplace_back(column);
    per_query_head_ = per_query_head_ || column == "q_head";
  }
  row_key_ = joined_;
  for (const ColumnDoc& column : own_) {
    header_.emplace_back(column.name);
  }
  run_at_ = header_.size();
  std::vector<std::string_view> end{"run_id", "row_crc"};
  end.insert(end.end(), last.begin(), last.end());
  for (const std::string_view column : end) {
    last_.push_back(column_index(column));
    header_.emplace_back(column);
  }
}

std::filesystem::path TableSpec::path(const std::filesystem::path& csv) const {
  std::filesystem::path out = csv;
  if (!is_side()) {
    return out;
  }
  if (out.extension() == ".csv") {
    out.replace_extension();
  }
  out += "." + name_ + ".csv";
  return out;
}

void TableSpec::check_width(std::span<const std::string> line) const {
  if (line.size() != header_.size()) {
    throw InputError(
        fmt::format("{}: a row has {} fields, expected {}", name_, line.size(), header_.size()));
  }
}

Fields TableSpec::line_of(std::span<const std::string> row, const Fields& own) const {
  Fields out;
  out.reserve(header_.size());
  for (const std::size_t column : joined_) {
    out.push_back(row[column]);
  }
  out.insert(out.end(), own.begin(), own.end());
  for (const std::size_t column : last_) {
    out.push_back(row[column]);
  }
  check_width(out);
  return out;
}

std::string TableSpec::key(std::span<const std::string> line) const {
  check_width(line);
  return key_of(line, line_key_);
}

bool has_lines(std::string_view status) {
  const std::string_view kind = status_kind(status);
  return kind == "ok" || kind == "degenerate";
}

const TableSpec& main_table() {
  static const TableSpec table;
  return table;
}

const TableSpec& steps_table() {
  static const TableSpec table(
      "steps", key_columns(),
      {{"step", "", "position of the query, 0-based"},
       {"rel_error", "fraction",
        "|z-a| / |a| of this query; `nan` where nothing was held to attend to"},
       {"bytes", "bytes", "sinks, recent window and what the method holds at this step"}});
  return table;
}

const TableSpec& kept_table() {
  static const TableSpec table(
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

const TableSpec& queries_table() {
  static const TableSpec table(
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

const TableSpec& every_query_table() {
  static const TableSpec table(
      "queries", schema_and_keys(),
      {{"step", "", "position of the query in the prompt, 0-based"},
       {"offset", "queries",
        "number of the query among the evaluated ones, from 0: how far it lies behind the prompt's "
        "end"},
       {"rel_error", "fraction", "|z-a| / |a| of this query"}});
  return table;
}

const TableSpec& layers_table() {
  static const TableSpec table = [] {
    std::vector<std::string_view> joined = schema_and_keys();
    std::erase(joined, "q_head");
    return TableSpec(
        "layers", joined,
        {{"out_rel_error", "fraction",
          "|D|_F / |sum_h W_h a_h|_F; 0 for 0/0, else `inf` where the divisor is 0"},
         {"residual_rel_error", "fraction",
          "sqrt(sum_j |D_j|^2 / sum_j r_j^2); empty where the trace has no norms"},
         {"residual_rel_error_heads", "fractions",
          "the same of each KV head's own part of D, separated by `;`"},
         {"budget_bytes", "bytes",
          "full bytes of the layer that a budget is a share of: of the middle, or of all tokens"}});
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
