#include "replay/resume_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "replay/option_list.hpp"

namespace kvbench {
namespace {

using nlohmann::json;

struct Difference {
  std::string text;
  bool more = false;  // the new value contains the old one
};

std::string text_of(const json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_object()) {  // an algorithm
    const std::string params = value.at("params");
    return value.at("name").get<std::string>() + (params.empty() ? "" : ":") + params;
  }
  if (value.is_array()) {
    std::string out;
    for (const json& one : value) {
      out += (out.empty() ? "" : ",") + text_of(one);
    }
    return out.empty() ? "all" : out;
  }
  return value.dump();
}

// Whether all that was chosen `then` is chosen `now`.
bool holds_all(const json& then, const json& now, OptionEffect effect) {
  if (then.is_string()) {  // seeds
    return std::ranges::includes(parse_seeds(now), parse_seeds(then));
  }
  const std::set<json> had(then.begin(), then.end());
  const std::set<json> have(now.begin(), now.end());
  return effect == OptionEffect::subset && (had.empty() || have.empty())
             ? have.empty()
             : std::ranges::includes(have, had);
}

bool same_value(const json& then, const json& now) {
  return then.is_array()
             ? std::set<json>(then.begin(), then.end()) == std::set<json>(now.begin(), now.end())
             : then == now;
}

std::string option_name(std::string key) {
  std::ranges::replace(key, '_', '-');
  return key == "budgets" ? "--budget" : "--" + key;
}

// Names one algorithm that differs: the lists are long.
void compare_algorithms(const json& then, const json& now, std::vector<Difference>& out) {
  const auto lacking = [](const json& all, const json& from) {
    return std::ranges::find_if(
        all, [&](const json& one) { return std::ranges::find(from, one) == from.end(); });
  };
  const auto lost = lacking(then, now);
  const auto added = lacking(now, then);
  if (lost != then.end()) {
    out.push_back({fmt::format("--algorithm: missing {}", text_of(*lost))});
  } else if (added != now.end()) {
    out.push_back(
        {fmt::format("--algorithm: got {}, which the table does not have", text_of(*added)), true});
  }
}

std::string shard_text(const std::optional<Shard>& shard) {
  return shard ? fmt::format("{}/{}", shard->index, shard->count) : "1/1";
}

std::vector<std::string> names_of(const Manifest& m) {
  std::vector<std::string> out;
  for (const TraceFile& trace : m.traces) {
    out.push_back(std::filesystem::path(trace.path).filename().string());
  }
  return out;
}

std::vector<Difference> differences(const ReplayOptions& options, const Manifest& then,
                                    const Manifest& now) {
  std::vector<Difference> out;
  const json& had = then.configuration;
  const json& have = now.configuration;
  if (json(names_of(then)) != json(names_of(now))) {
    out.push_back({fmt::format("traces: got {}, expected {}", fmt::join(names_of(now), ","),
                               fmt::join(names_of(then), ","))});
  }
  compare_algorithms(had.at("algorithms"), have.at("algorithms"), out);
  visit_options(options, [&](const char* key, const auto&, OptionEffect effect) {
    const json before = option_of(had, key);
    const json& after = have.at(key);
    if (effect == OptionEffect::none || same_value(before, after)) {
      return;
    }
    out.push_back(
        {fmt::format("{}: got {}, expected {}", option_name(key), text_of(after), text_of(before)),
         effect != OptionEffect::rows && holds_all(before, after, effect)});
  });
  if (shard_text(then.shard) != shard_text(now.shard)) {
    out.push_back({fmt::format("--shard: got {}, expected {}", shard_text(now.shard),
                               shard_text(then.shard))});
  }
  if (out.empty()) {
    out.push_back({"traces or caches: their metadata differ"});
  }
  return out;
}

// Throws InputError if layers are added and heads of several layers share a budget: rows would
// change.
void check_layers_alone(const PlanSpec& plan, const Manifest& then, const Manifest& now) {
  const json& had = then.configuration;
  if (had.at("layers") == now.configuration.at("layers")) {
    return;
  }
  for (const Variant& v : plan.variants) {
    const json one{{"name", v.label()}, {"params", v.label_params()}};
    if (v.scope() == Scope::layers &&
        std::ranges::find(had.at("algorithms"), one) != had.at("algorithms").end()) {
      throw InputError(fmt::format(
          "{}: --extend: --layers: {} shares a budget among all replayed layers, so "
          "more layers would change its rows; expected the layers of the run to extend, "
          "or another file",
          plan.options.out, text_of(one)));
    }
  }
}

// Throws InputError unless `extend` and the plan only adds to that of `then`.
void check_extends(const PlanSpec& plan, const Manifest& then, const Manifest& now) {
  const ReplayOptions& o = plan.options;
  const std::vector<Difference> all = differences(o, then, now);
  const bool more = std::ranges::all_of(all, &Difference::more) && !then.shard && !now.shard;
  if (!more || !o.extend) {
    std::vector<std::string> texts;
    std::ranges::transform(all, std::back_inserter(texts), &Difference::text);
    throw InputError(fmt::format("{}: options differ from those of the run to {}: {}{} ({})", o.out,
                                 o.extend ? "extend" : "resume", fmt::join(texts, "; "),
                                 more       ? "; --extend adds missing rows"
                                 : o.extend ? "; --extend only adds to a plan"
                                            : "",
                                 manifest_path(o.out).string()));
  }
  check_layers_alone(plan, then, now);
}

}  // namespace

bool check_resumable(const PlanSpec& plan, const Manifest& then, const Manifest& now) {
  const std::string& out = plan.options.out;
  check_traces_unchanged(then, out);
  const bool same =
      then.plan->hash == now.plan->hash && then.plan->row_ranges == now.plan->row_ranges;
  try {
    if (!same) {
      check_extends(plan, then, now);
    }
  } catch (const json::exception& error) {  // a key is missing
    throw InputError(
        fmt::format("{}: configuration: {}", manifest_path(out).string(), error.what()));
  }
  // Traces of the same names may have other contents.
  check_input(
      trace_hashes(then) == trace_hashes(now),
      fmt::format("{}: the contents of the traces differ from those of the run to {} ({})", out,
                  plan.options.extend ? "extend" : "resume", manifest_path(out).string()));
  return same;
}

}  // namespace kvbench
