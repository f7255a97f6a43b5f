#include "report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// Rows that differ in one of these are not pooled: their mean says nothing.
constexpr std::array<std::string_view, 9> settings{
    "model", "dtype", "precision", "protocol", "sink", "recent", "scores", "device", "n_queries"};

// What the rows of a group may differ in, and its plural.
struct SpreadColumn {
  std::string_view name;
  std::string_view plural;
};
constexpr std::array<SpreadColumn, 5> spread_columns{{{"trace", "traces"},
                                                      {"prompt", "prompts"},
                                                      {"layer", "layers"},
                                                      {"q_head", "query heads"},
                                                      {"seed", "seeds"}}};

constexpr std::size_t kKeysAtOnce = 4096;  // of repeated rows, in memory
constexpr std::size_t kValuesListed = 5;   // of a setting, in a message

// Shares of bytes, whose mean is a sum of bytes over a sum of bytes.
constexpr std::array<std::string_view, 3> shares{"ratio", "middle_ratio", "read_ratio"};

// The reason of a degenerate row has no numbers before " for "; those of others have.
std::string kind_and_reason(std::string_view status) {
  const std::string_view kind = status_kind(status);
  return std::string(kind == "degenerate" ? status.substr(0, status.find(" for ")) : kind);
}

// Null if there is no such status.
Index* count_of(SummaryGroup& group, std::string_view status) {
  const std::string_view kind = status_kind(status);
  return kind == "ok"           ? &group.count
         : kind == "degenerate" ? &group.degenerate
         : kind == "infeasible" ? &group.infeasible
         : kind == "failed"     ? &group.failed
                                : nullptr;
}

// Sums over a group's rows: of the values, then of their squared distances from the mean.
struct Sums {
  double values = 0.0;
  double squares = 0.0;
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  // Of shares: bytes that they are of, the sum, and the sum of the shares' bytes.
  double of = 0.0;
  double whole = 0.0;
  double part = 0.0;
  bool unequal = false;  // in `of`

  void add(double value) {
    values += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }

  void add_share(double value, double bytes) {
    unequal = unequal || (whole > 0.0 && bytes != of);
    of = bytes;
    whole += bytes;
    part += bytes * value;
  }

  // NaN of no rows. Clamped to the values, so that equal ones deviate by 0 whatever the rounding.
  double mean(Index count) const {
    const double x = values / static_cast<double>(count);
    return least <= most ? std::clamp(x, least, most) : x;
  }

  double shown(Index count) const { return unequal ? part / whole : mean(count); }
};

// The rows of a table that all filters keep.
class ResultRows {
 public:
  ResultRows(const ResultTable& table, std::vector<RowFilter>& filters)
      : table_(table()), filters_(filters) {
    for (const RowFilter& filter : filters_) {
      filter_at_.push_back(column(filter.column()));
    }
    for (const std::string_view name : key_columns()) {
      key_at_.push_back(column(name));
    }
  }

  bool next() {
    while (table_->next()) {
      bool kept = true;
      for (std::size_t f = 0; f < filters_.size(); ++f) {
        kept = filters_[f].keeps(cell(filter_at_[f])) && kept;
      }
      if (kept) {
        return true;
      }
    }
    return false;
  }

  std::size_t column(std::string_view name) const { return table_->column(name); }
  std::optional<std::size_t> find(std::string_view name) const {
    const auto at = std::ranges::find(table_->header(), name);
    return at == table_->header().end() ? std::nullopt
                                        : std::optional(at - table_->header().begin());
  }
  const std::string& cell(std::size_t column) const { return table_->row()[column]; }
  const std::string& source() const { return table_->source(); }
  std::size_t line() const { return table_->row_line(); }
  Index row() const { return table_->rows(); }  // its number, 1-based

  std::string key() const { return key_of(table_->row(), key_at_); }  // of the key columns
  std::uint64_t key_hash() const { return std::hash<std::string>{}(key()); }
  std::string key_text() const {  // `trace=a.h5, prompt=...`
    std::string text;
    for (const std::size_t at : key_at_) {
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", table_->header()[at], cell(at));
    }
    return text;
  }

 private:
  std::unique_ptr<TableReader> table_;
  std::vector<RowFilter>& filters_;
  std::vector<std::size_t> filter_at_;
  std::vector<std::size_t> key_at_;
};

// Throws InputError if two rows have one key. `hashes`: of all rows, in any order. Rereads the
// tables only if hashes repeat.
void check_duplicates(std::span<const ResultTable> tables, std::vector<RowFilter>& filters,
                      std::vector<std::uint64_t> hashes) {
  std::ranges::sort(hashes);
  std::vector<std::uint64_t> repeated;
  for (auto at = std::ranges::adjacent_find(hashes); at != hashes.end();
       at = std::adjacent_find(std::upper_bound(at, hashes.end(), *at), hashes.end())) {
    repeated.push_back(*at);
  }
  // Different keys rarely share a hash: the first round almost always finds the row.
  for (std::size_t begin = 0; begin < repeated.size(); begin += kKeysAtOnce) {
    const auto now =
        std::span(repeated).subspan(begin, std::min(kKeysAtOnce, repeated.size() - begin));
    std::map<std::string, std::string> seen;  // where, by key
    for (const ResultTable& table : tables) {
      for (ResultRows rows(table, filters); rows.next();) {
        if (!std::ranges::binary_search(now, rows.key_hash())) {
          continue;
        }
        const auto [first, fresh] =
            seen.emplace(rows.key(), fmt::format("{}, line {}", rows.source(), rows.line()));
        if (!fresh) {
          throw InputError(fmt::format("{}: line {}: duplicate row, also in {}: {}", rows.source(),
                                       rows.line(), first->second, rows.key_text()));
        }
      }
    }
  }
}

using Values = std::set<std::string>;

// Reads all rows twice, with add() and then add_squares(); finish() computes the moments.
class Collector {
 public:
  explicit Collector(Summary& summary) : summary_(summary) {
    for (const std::string_view name : settings) {
      if (std::ranges::count(summary_.group_columns, name) == 0) {
        settings_.emplace_back(name);
      }
    }
  }

  void open(const ResultRows& rows) {
    schema_at_ = rows.column("schema");
    group_at_ = positions(rows, summary_.group_columns);
    metric_at_ = positions(rows, summary_.metrics);
    settings_at_ = positions(rows, settings_);
    for (std::size_t c = 0; c < spread_columns.size(); ++c) {
      spread_at_[c] = rows.column(spread_columns[c].name);
    }
    status_at_ = rows.column("status");
    for (std::size_t m = 0; m < summary_.metrics.size(); ++m) {
      if (std::ranges::count(shares, summary_.metrics[m]) > 0) {
        share_at_ = {rows.column("bytes"), rows.column("full_bytes"), rows.column("middle_ratio"),
                     rows.find("read_bytes"), rows.find("read_ratio")};
        head_at_ = positions(rows, {"trace", "prompt", "layer", "kv_head", "sink", "recent"});
      }
    }
  }

  void add(const ResultRows& rows) {
    check_schema(rows);
    hashes_.push_back(rows.key_hash());
    Fields key = cells(rows, group_at_);
    const auto [it, fresh] = index_.emplace(key, summary_.groups.size());
    const std::size_t g = it->second;
    if (fresh) {
      summary_.groups.push_back({.key = std::move(key), .moments = {}});
      states_.push_back(
          {std::vector<Sums>(summary_.metrics.size()), {}, std::vector<Values>(settings_.size())});
    }
    State& state = states_[g];
    for (std::size_t s = 0; s < settings_.size(); ++s) {
      const std::string& value = rows.cell(settings_at_[s]);
      if (!value.empty()) {  // an empty cell is unknown and differs from nothing
        state.settings[s].insert(value);
      }
    }
    const std::string& status = rows.cell(status_at_);
    Index* const count = count_of(summary_.groups[g], status);
    if (count == nullptr) {
      refuse(rows,
             fmt::format("status `{}`, expected ok, degenerate, infeasible or failed", status));
    }
    ++*count;
    if (count != &summary_.groups[g].count) {
      ++summary_.skipped[kind_and_reason(status)];
      return;
    }
    for (std::size_t c = 0; c < spread_at_.size(); ++c) {
      const std::string& value = rows.cell(spread_at_[c]);
      if (*count == 1) {
        state.first[c] = value;
      }
      varies_[c] = varies_[c] || value != state.first[c];
    }
    for (std::size_t m = 0; m < metric_at_.size(); ++m) {
      state.sums[m].add(number(rows, metric_at_[m], summary_.metrics[m]));
    }
    if (share_at_) {
      if (const double middle = middle_bytes(rows); middle > 0.0) {
        middles_.emplace(cells(rows, head_at_), middle);
      }
    }
  }

  void add_squares(const ResultRows& rows) {
    if (status_kind(rows.cell(status_at_)) != "ok") {
      return;
    }
    const auto it = index_.find(cells(rows, group_at_));
    if (it == index_.end()) {
      refuse(rows, "got a new group on the second reading, expected an unchanged table");
    }
    for (std::size_t m = 0; m < metric_at_.size(); ++m) {
      Sums& sums = states_[it->second].sums[m];
      const double distance = number(rows, metric_at_[m], summary_.metrics[m]) -
                              sums.mean(summary_.groups[it->second].count);
      sums.squares += distance * distance;
      if (std::ranges::count(shares, summary_.metrics[m]) > 0) {
        const auto middle = middles_.find(cells(rows, head_at_));
        sums.add_share(number(rows, metric_at_[m], summary_.metrics[m]),
                       summary_.metrics[m] == "ratio" || middle == middles_.end()
                           ? full_bytes(rows)
                           : std::round(middle->second));
      }
    }
  }

  std::vector<std::uint64_t> move_hashes() { return std::move(hashes_); }

  // Settings that differ within a group, with their values.
  std::map<std::string, Values> differing() const {
    std::map<std::string, Values> out;
    for (const State& state : states_) {
      for (std::size_t s = 0; s < settings_.size(); ++s) {
        if (state.settings[s].size() > 1) {
          out[settings_[s]].insert(state.settings[s].begin(), state.settings[s].end());
        }
      }
    }
    return out;
  }

  void finish() {
    for (std::size_t g = 0; g < states_.size(); ++g) {
      SummaryGroup& group = summary_.groups[g];
      const auto n = static_cast<double>(group.count);
      for (const Sums& sums : states_[g].sums) {
        group.moments.push_back(
            {sums.shown(group.count), n == 0.0 ? nan_value : std::sqrt(sums.squares / (n - 1.0))});
      }
    }
    for (std::size_t c = 0; c < spread_columns.size(); ++c) {
      if (varies_[c]) {
        summary_.spread.push_back(spread_columns[c].plural);
      }
    }
  }

 private:
  struct State {                                           // of a group
    std::vector<Sums> sums;                                // by metric
    std::array<std::string, spread_columns.size()> first;  // cells of the first ok row
    std::vector<Values> settings;                          // seen, by setting
  };

  static std::vector<std::size_t> positions(const ResultRows& rows,
                                            const std::vector<std::string>& names) {
    std::vector<std::size_t> at;
    for (const std::string& name : names) {
      at.push_back(rows.column(name));
    }
    return at;
  }

  [[noreturn]] static void refuse(const ResultRows& rows, const std::string& what) {
    throw InputError(fmt::format("{}: row {}: {}", rows.source(), rows.row(), what));
  }

  void check_schema(const ResultRows& rows) {
    const std::string& got = rows.cell(schema_at_);
    if (major_of(got) != major_of(schema_version)) {
      refuse(rows, fmt::format("schema `{}`, expected {}.x", got, major_of(schema_version)));
    }
    if (!version_.empty() && got != version_) {
      refuse(rows, fmt::format("schema `{}` after rows of `{}`: mixed schemas", got, version_));
    }
    version_ = got;
  }

  static Fields cells(const ResultRows& rows, const std::vector<std::size_t>& columns) {
    Fields out;
    for (const std::size_t at : columns) {
      out.push_back(rows.cell(at));
    }
    return out;
  }

  double full_bytes(const ResultRows& rows) const {
    return number(rows, share_at_->full_bytes, "full_bytes");
  }

  // Full bytes of the head's middle, by what the row holds or reads of it; 0: it does not tell.
  double middle_bytes(const ResultRows& rows) const {
    const double left = 1.0 - number(rows, share_at_->middle_ratio, "middle_ratio");
    if (std::abs(left) > 1e-9) {
      return (full_bytes(rows) - number(rows, share_at_->bytes, "bytes")) / left;
    }
    double bytes = 0.0;
    double ratio = 0.0;
    const bool reads = share_at_->read_bytes && share_at_->read_ratio &&
                       parse_number(rows.cell(*share_at_->read_bytes), bytes) &&
                       parse_number(rows.cell(*share_at_->read_ratio), ratio) && ratio > 0.0;
    return reads ? bytes / ratio : 0.0;
  }

  static double number(const ResultRows& rows, std::size_t at, std::string_view name) {
    double value = 0.0;
    const std::string& text = rows.cell(at);
    if (!parse_number(text, value)) {
      refuse(rows, fmt::format("column `{}`: got `{}`, expected a number", name, text));
    }
    return value;
  }

  Summary& summary_;
  std::vector<std::string> settings_;  // that are no group columns
  std::string version_;                // of the rows' schema
  // Positions in the open table.
  std::size_t schema_at_ = 0;
  std::vector<std::size_t> group_at_;
  std::vector<std::size_t> metric_at_;
  std::vector<std::size_t> settings_at_;
  std::array<std::size_t, spread_columns.size()> spread_at_{};
  std::size_t status_at_ = 0;
  struct ShareColumns {
    std::size_t bytes, full_bytes, middle_ratio;
    std::optional<std::size_t> read_bytes, read_ratio;
  };
  std::optional<ShareColumns> share_at_;  // if some metric is a share
  std::vector<std::size_t> head_at_;
  std::map<Fields, double> middles_;     // full bytes, by head
  std::map<Fields, std::size_t> index_;  // of groups, by key
  std::vector<State> states_;            // by group
  std::array<bool, spread_columns.size()> varies_{};
  std::vector<std::uint64_t> hashes_;  // of the rows' keys
};

std::string pooled_message(const std::map<std::string, Values>& differing) {
  std::string what;
  for (const auto& [name, values] : differing) {
    const auto end =
        std::next(values.begin(), std::min(std::ssize(values), std::ptrdiff_t{kValuesListed}));
    what += fmt::format("{}{} ({}{})", what.empty() ? "" : ", ", name,
                        fmt::join(values.begin(), end, ", "), end == values.end() ? "" : ", ...");
  }
  const auto& [name, values] = *differing.begin();
  return fmt::format(
      "summarize: rows of one mean differ in {}; --by {} separates them, --where "
      "{}={} picks some, --pool pools them",
      what, name, name, *values.begin());
}

// Stable; NaN last in both directions.
void sort_groups(Summary& summary, const SummaryOptions& options) {
  const auto metric = std::ranges::find(summary.metrics, options.sort) - summary.metrics.begin();
  const auto column =
      std::ranges::find(summary.group_columns, options.sort) - summary.group_columns.begin();
  const bool by_metric = metric < std::ssize(summary.metrics);
  if (!by_metric && column == std::ssize(summary.group_columns)) {
    throw InputError(
        fmt::format("sort: `{}` is neither a chosen metric nor a group column", options.sort));
  }
  const auto number = [&](const SummaryGroup& g) {
    double value = nan_value;
    return by_metric                            ? g.moments[metric].mean
           : parse_number(g.key[column], value) ? value
                                                : nan_value;
  };
  std::ranges::stable_sort(summary.groups, [&](const SummaryGroup& a, const SummaryGroup& b) {
    const bool none = std::isnan(number(a));
    if (none != std::isnan(number(b))) {
      return !none;
    }
    const SummaryGroup& low = options.descending ? b : a;
    const SummaryGroup& high = options.descending ? a : b;
    return none && !by_metric ? low.key[column] < high.key[column] : number(low) < number(high);
  });
}

}  // namespace

ResultTable result_table(const std::filesystem::path& csv) {
  return [csv] { return open_result_table(csv); };
}

Summary summarize(std::span<const ResultTable> tables, const SummaryOptions& options) {
  Summary summary;
  summary.group_columns.assign(kGroupColumns.begin(), kGroupColumns.end());
  for (const std::string& name : options.by) {
    if (std::ranges::count(summary.group_columns, name) == 0) {
      summary.group_columns.push_back(name);
    }
  }
  summary.metrics = options.metrics;
  std::vector<RowFilter> filters = options.where;
  Collector collector(summary);
  std::string first;
  for (const ResultTable& table : tables) {
    ResultRows rows(table, filters);
    first = first.empty() ? rows.source() : first;
    for (collector.open(rows); rows.next();) {
      collector.add(rows);
    }
  }
  for (const RowFilter& filter : filters) {
    filter.check_met();
  }
  if (summary.groups.empty()) {
    std::string kept;
    for (const RowFilter& filter : filters) {
      kept += fmt::format(" --where {}", filter.text());
    }
    throw InputError(kept.empty() ? fmt::format("{}: no rows to summarize", first)
                                  : fmt::format("{}: no rows are left by{}", first, kept));
  }
  check_duplicates(tables, filters, collector.move_hashes());
  const std::map<std::string, Values> differing = collector.differing();
  if (!differing.empty() && !options.pool) {
    throw InputError(pooled_message(differing));
  }
  for (const auto& [name, values] : differing) {
    summary.pooled.push_back(name);
  }
  for (const ResultTable& table : tables) {
    ResultRows rows(table, filters);
    for (collector.open(rows); rows.next();) {
      collector.add_squares(rows);
    }
  }
  collector.finish();
  if (!options.sort.empty()) {
    sort_groups(summary, options);
  }
  return summary;
}

}  // namespace kvbench
