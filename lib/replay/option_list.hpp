// The options of a replay that its manifest has, each with the member of ReplayOptions: written,
// read and compared from this list.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "core/types.hpp"
#include "replay/options.hpp"

namespace kvbench {

/// What a value that differs means for the rows of an earlier run.
enum class OptionEffect {
  none,     ///< nothing
  rows,     ///< other rows
  members,  ///< of a list: more values add rows
  subset,   ///< the same, and an empty list is all
};

/// Calls visit(key, member, effect) for each option. The option is `--KEY` with dashes, `--budget`
/// for `budgets`. Algorithms, traces and shard are not here: the manifest has them as resolved.
template <class Options, class Visit>
void visit_options(Options& o, const Visit& visit) {
  using enum OptionEffect;
  visit("policies", o.policies, none);
  visit("budgets", o.budgets, members);
  visit("total_budget", o.total_budget, rows);
  visit("seeds", o.seeds, members);
  visit("layers", o.layers, subset);
  visit("heads", o.heads, subset);
  visit("prompts", o.prompts, subset);
  visit("protocol", o.protocol, rows);
  visit("sink", o.sink, rows);
  visit("recent", o.recent, rows);
  visit("queries", o.queries, rows);
  visit("scores", o.scores, rows);
  visit("device", o.device, rows);
  visit("precision", o.precision, rows);
  visit("eval_every", o.eval_every, rows);
  visit("repeat", o.repeat, rows);
  visit("kept", o.kept, rows);
  visit("per_query", o.per_query, rows);
  visit("memory_limit", o.memory_limit, none);
  visit("export_caches", o.export_caches, none);
  visit("caches", o.caches, none);
}

/// An option of a manifest. Early ones have no total_budget.
inline nlohmann::json option_of(const nlohmann::json& configuration, const std::string& key) {
  const bool absent = key == "total_budget" && !configuration.contains(key);
  return absent ? nlohmann::json(false) : configuration.at(key);
}

template <class T>
nlohmann::json option_to_json(const T& value) {
  if constexpr (std::is_same_v<T, PerQuery>) {
    return value == PerQuery::none ? nlohmann::json(false) : nlohmann::json(name(value));
  } else if constexpr (std::is_enum_v<T>) {
    return name(value);
  } else {
    return value;
  }
}

/// Throws nlohmann::json::exception for another type. An unknown name leaves the value.
template <class T>
void option_from_json(const nlohmann::json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    for (int i = 0; i < 3; ++i) {  // no enumeration has more values
      if (json == option_to_json(static_cast<T>(i))) {
        value = static_cast<T>(i);
        return;
      }
    }
  } else {
    json.get_to(value);
  }
}

}  // namespace kvbench
