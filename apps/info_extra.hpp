// Extra queries and scores of a trace, for kvbench info.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trace/schema.hpp"

namespace kvbench {

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& x) {
  return x ? nlohmann::ordered_json(*x) : nlohmann::ordered_json();
}

/// Returns a line per extra set and per scores; sets that differ between layers have separate
/// lines. Empty without any.
std::string extra_text(const PromptMeta& prompt);

/// Adds the arrays `extra` and `scores`, which may be empty, to the JSON object of a layer.
void add_extra(const LayerMeta& layer, nlohmann::ordered_json& to);

}  // namespace kvbench
