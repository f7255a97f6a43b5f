// What `kvbench info` says of the extra queries and scores of a trace's layers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "trace/schema.hpp"

namespace kvbench {

/// A line for each set and each scores of the prompt's layers, with the layers that differ apart;
/// empty where there are none.
std::string extra_text(const PromptMeta& prompt);

/// Adds `extra` and `scores` to the object of a layer: arrays, empty where there are none.
void add_extra(const LayerMeta& layer, nlohmann::ordered_json& to);

}  // namespace kvbench
