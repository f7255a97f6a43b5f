#include "replay/cluster_kept.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "replay/selection.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"

namespace kvbench {
namespace {

// The columns of a setting; those behind kParams but the last two do not enter its label.
constexpr std::array kSetting{"algorithm", "params", "protocol",        "sink", "recent", "scores",
                              "device",    "seed",   "budget_requested"};
constexpr std::size_t kAlgorithm = 0;
constexpr std::size_t kParams = 1;

std::vector<std::pair<std::string, std::string>> label_fields(const Fields& setting) {
  auto out = split_params(setting[kParams]);
  out.insert(out.begin(), {kSetting.back(), setting.back()});
  out.emplace_back(kSetting.end()[-2], setting.end()[-2]);
  return out;
}

}  // namespace

KeptSets::KeptSets(const ClusterPlan& plan) {
  for (const ClusterHead& h : plan.heads) {
    tokens_[plan.place(h)] = plan.layer(h).n;
  }
  for (const std::string& file : plan.options.kept_by) {
    read(file);
  }
  // Labels are short: two settings may have the same.
  for (const auto& [place, settings] : sets_) {
    std::set<std::string> names;
    for (const auto& [key, set] : settings) {
      check_input(
          names.insert(label(key)).second,
          fmt::format("--kept-by: prompt {} layer {} KV head {}: duplicate label '{}', expected "
                      "files that differ in algorithm, parameters, budget or seed",
                      place[1], place[2], place[3], label(key)));
    }
  }
}

void KeptSets::fill(const Fields& place, Points& points) const {
  points.kept_by.assign(points.tokens.size(), "");
  const auto found = sets_.find(place);
  if (found == sets_.end()) {
    return;
  }
  for (const auto& [key, set] : found->second) {
    const std::vector<Index> kept = parse_ranges(set.ranges, tokens_.at(place));
    const std::string name = label(key);
    for (std::size_t i = 0; i < points.tokens.size(); ++i) {
      if (std::binary_search(kept.begin(), kept.end(), points.tokens[i])) {
        points.kept_by[i] += (points.kept_by[i].empty() ? "" : ";") + name;
      }
    }
  }
}

void KeptSets::read(const std::string& file) {
  const std::unique_ptr<TableReader> table = open_side_table(file, kept_table());
  // Those about the model are not needed.
  const auto needed = std::span(kept_table().header()).first(kept_table().run_at());
  std::vector<std::size_t> at;
  for (const std::string& column : needed) {
    at.push_back(table->column(column));
  }
  bool fits = false;
  while (table->next()) {
    std::map<std::string, std::string> row;
    for (std::size_t c = 0; c < at.size(); ++c) {
      row[needed[c]] = table->row()[at[c]];
    }
    try {
      fits = add(std::move(row)) || fits;
    } catch (const InputError& e) {
      throw InputError(fmt::format("{}: row {}: {}", file, table->rows(), e.what()));
    }
  }
  check_input(
      fits, fmt::format("{}: no kept set of a selected KV head, expected the table of a replay of "
                        "these traces",
                        file));
}

// Returns whether the row is of a selected head.
bool KeptSets::add(std::map<std::string, std::string> row) {
  check_input(major_of(row["schema"]) == major_of(schema_version),
              fmt::format("got schema {}, expected {}", row["schema"], schema_version));
  const Fields place{row["trace"], row["prompt"], row["layer"], row["kv_head"]};
  const auto n = tokens_.find(place);
  if (n == tokens_.end()) {
    return false;
  }
  check_input(
      row["n_tokens"] == std::to_string(n->second),
      fmt::format("got n_tokens {}, expected {} as in the trace", row["n_tokens"], n->second));
  const std::string& text = row["step"];
  Index step = -1;
  check_input(parse_number(text, step) && step >= 0 && step < n->second,
              fmt::format("got step `{}`, expected a position below {}", text, n->second));
  parse_ranges(row["tokens"], n->second);
  Fields key;
  for (const char* column : kSetting) {
    key.push_back(row[column]);
  }
  Set& set = sets_[place][key];
  check_input(step != set.step, fmt::format("duplicate step {} of {}", step, row["algorithm"]));
  if (step > set.step) {
    set = {step, row["tokens"]};
    for (const auto& [name, value] : label_fields(key)) {
      seen_[{key[kAlgorithm], name}].insert(value);
    }
  }
  return true;
}

std::string KeptSets::label(const Fields& setting) const {
  std::string out = setting[kAlgorithm];
  for (const auto& [name, value] : label_fields(setting)) {
    if (!value.empty() && seen_.at({setting[kAlgorithm], name}).size() > 1) {
      out += fmt::format(" {}={}", name, value);
    }
  }
  return out;
}

}  // namespace kvbench
