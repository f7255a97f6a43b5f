#include "replay/shard_calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "metrics/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// No method grows faster than n^3. A steeper fit is noise.
constexpr double kMaxExponent = 3.0;

using Setting = std::pair<std::size_t, std::optional<double>>;

struct RowTime {
  double compress_s = 0.0;
  double attend_s = 0.0;  // per query head
};

// Rows of one setting, by n.
using TimesByTokens = std::map<Index, std::vector<RowTime>>;

std::string_view device_kind(std::string_view device) {
  return device.substr(0, device.find(':'));
}

std::string setting_text(const PlanSpec& plan, const Setting& setting) {
  const Variant& v = plan.variants[setting.first];
  return fmt::format("{}{}{}{}", v.label(), v.label_params().empty() ? "" : ":", v.label_params(),
                     setting.second ? fmt::format(" at budget {}", *setting.second) : "");
}

std::map<Setting, TimesByTokens> times_of(const PlanSpec& plan, const Table& table) {
  // Rows have parameters as resolved for their layer.
  std::map<std::tuple<std::string, std::string, std::string>, Setting> known;
  std::map<std::size_t, std::set<std::optional<double>>> budgets;
  for (const Entries::Setting& s : plan.entries.settings()) {
    budgets[s.first.variant].insert(s.first.budget);
  }
  const auto add = [&](std::size_t number, const Variant& v) {
    for (const std::optional<double>& budget : budgets[number]) {
      known.emplace(std::tuple{v.label(), v.label_params(), budget ? number_text(*budget) : ""},
                    Setting{number, budget});
    }
  };
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    add(v, plan.variants[v]);
  }
  for (const auto& [where, variant] : plan.resolved) {
    add(std::get<std::size_t>(where), variant);
  }
  const std::size_t schema = table.column("schema");
  const std::size_t algorithm = table.column("algorithm");
  const std::size_t params = table.column("params");
  const std::size_t budget = table.column("budget_requested");
  const std::size_t protocol = table.column("protocol");
  const std::size_t device = table.column("device");
  const std::size_t status = table.column("status");
  std::map<Setting, TimesByTokens> out;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const Fields& row = table.rows[r];
    const auto refuse = [&](std::string_view column, std::string_view expected) {
      throw InputError(fmt::format("--shard-costs {}: row {}: column {}: got '{}', expected {}",
                                   table.source, r + 1, column, row[table.column(column)],
                                   expected));
    };
    if (major_of(row[schema]) != major_of(schema_version)) {
      refuse("schema", fmt::format("{}.x", major_of(schema_version)));
    }
    const auto at = known.find({row[algorithm], row[params], row[budget]});
    const std::string_view kind = status_kind(row[status]);
    if (at == known.end() || row[protocol] != name(plan.options.protocol) ||
        device_kind(row[device]) != device_kind(plan.options.device) || kind == "failed") {
      continue;
    }
    const auto count = [&](std::string_view column) {
      Index value = 0;
      if (!parse_number(row[table.column(column)], value) || value < 1) {
        refuse(column, "a count of at least 1");
      }
      return value;
    };
    const auto time = [&](std::string_view column) {
      double value = 0.0;
      if (!parse_number(row[table.column(column)], value) || value < 0.0 || std::isinf(value)) {
        refuse(column, "a time");
      }
      return std::isnan(value) ? 0.0 : value;  // evaluate: the cache has no time
    };
    RowTime t;
    if (kind != "infeasible") {
      t = {1e-3 * time("compress_ms"),
           1e-6 * time("attend_us_per_query") * static_cast<double>(count("n_queries"))};
    }
    out[at->second][count("n_tokens")].push_back(t);
  }
  return out;
}

// Seconds of jobs with `q_heads` query heads.
class Model {
 public:
  Model(const PlanSpec& plan, const std::map<Setting, TimesByTokens>& times, Index q_heads) {
    std::map<std::string, Sums> sums;
    for (const auto& [setting, by_tokens] : times) {
      std::map<Index, double>& medians = medians_[setting];
      std::vector<std::pair<double, double>> logs;
      for (const auto& [n, rows] : by_tokens) {
        std::vector<double> all;
        for (const RowTime& t : rows) {
          all.push_back(t.compress_s + static_cast<double>(q_heads) * t.attend_s);
        }
        const double median = medians[n] = percentile(all, 0.5);
        if (median > 0.0) {
          logs.emplace_back(std::log(static_cast<double>(n)), std::log(median));
        }
      }
      sums[plan.variants[setting.first].label()].add(logs);
    }
    for (const auto& [setting, medians] : medians_) {
      exponents_[setting] = sums[plan.variants[setting.first].label()].slope();
    }
  }

  // nullopt if the table has no row of the setting.
  std::optional<double> seconds(const Setting& setting, Index n) const {
    const auto at = medians_.find(setting);
    if (at == medians_.end()) {
      return std::nullopt;
    }
    const auto distance = [n](const auto& median) {
      return std::abs(std::log(static_cast<double>(n) / static_cast<double>(median.first)));
    };
    const auto nearest = std::ranges::min_element(at->second, {}, distance);
    const double ratio = static_cast<double>(n) / static_cast<double>(nearest->first);
    return nearest->second * std::pow(ratio, exponents_.at(setting));
  }

  // Median over the settings of the table.
  double median(Index n) const {
    std::vector<double> all;
    for (const auto& [setting, medians] : medians_) {
      all.push_back(*seconds(setting, n));
    }
    return percentile(all, 0.5);
  }

 private:
  // Least squares of log t over log n, each setting around its own means.
  struct Sums {
    double xx = 0.0;
    double xy = 0.0;

    void add(const std::vector<std::pair<double, double>>& points) {
      double x_mean = 0.0;
      double y_mean = 0.0;
      for (const auto& [x, y] : points) {
        x_mean += x / static_cast<double>(points.size());
        y_mean += y / static_cast<double>(points.size());
      }
      for (const auto& [x, y] : points) {
        xx += (x - x_mean) * (x - x_mean);
        xy += (x - x_mean) * (y - y_mean);
      }
    }
    double slope() const { return xx > 0.0 ? std::clamp(xy / xx, 0.0, kMaxExponent) : 1.0; }
  };

  std::map<Setting, std::map<Index, double>> medians_;
  std::map<Setting, double> exponents_;
};

}  // namespace

ShardCosts calibrated(const PlanSpec& plan, const Table& calibration) {
  const auto refuse = [&](const std::string& what) {
    throw InputError(fmt::format("--shard-costs {}: {}", calibration.source, what));
  };
  const std::map<Setting, TimesByTokens> times = times_of(plan, calibration);
  if (times.empty()) {
    refuse(
        "no row of this plan's algorithms, parameters and budgets, expected a table of the same "
        "options on some of the heads");
  }
  constexpr double kMaxTotal = 0.25 * static_cast<double>(std::numeric_limits<Index>::max());
  std::map<Index, Model> models;
  // By tokens and number of query heads.
  std::map<std::pair<Index, Index>, ShardCosts::Times> known;
  std::vector<ShardCosts::Times> units;
  Index whole = 0;
  for (const Unit& unit : plan.units) {
    const std::pair key{plan.layer_meta(unit).n, static_cast<Index>(unit.q_heads.size())};
    ShardCosts::Times& times_of_unit = known[key];
    if (!times_of_unit) {
      std::vector<Index> before{0};
      const Model& model = models.try_emplace(key.second, plan, times, key.second).first->second;
      const double median = model.median(key.first);
      for (const Entries::Setting& s : plan.entries.settings()) {
        const double ns =
            1e9 * model.seconds({s.first.variant, s.first.budget}, key.first).value_or(median);
        for (std::size_t seed = 0; seed < s.seeds->size(); ++seed) {
          const Index last = before.back();
          if (!(ns + static_cast<double>(last) < kMaxTotal)) {
            refuse(fmt::format("{} s for one job, expected less", 1e-9 * ns));
          }
          before.push_back(last + std::llround(ns));
        }
      }
      times_of_unit = std::make_shared<const std::vector<Index>>(std::move(before));
    }
    units.push_back(times_of_unit);
    whole += times_of_unit->back();
    if (!(static_cast<double>(whole) < kMaxTotal)) {
      refuse(fmt::format("{} s for the plan, expected less", 1e-9 * static_cast<double>(whole)));
    }
  }
  if (whole == 0) {
    refuse("all times are 0, expected some above 0");
  }
  std::set<std::string> lacking;
  for (const Entries::Setting& s : plan.entries.settings()) {
    if (!times.contains({s.first.variant, s.first.budget})) {
      lacking.insert(setting_text(plan, {s.first.variant, s.first.budget}));
    }
  }
  std::vector<std::string> notes;
  for (const std::string& what : lacking) {
    notes.push_back(
        fmt::format("note: --shard-costs {}: no time for {}; it gets the median of the others",
                    calibration.source, what));
  }
  return {static_cast<Index>(plan.entries.size()), std::move(units), std::move(notes)};
}

}  // namespace kvbench
