// Internal to lib/trace: names in a caches file (docs/trace_format.md), and how reading one begins.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "trace/caches.hpp"
#include "trace/input_file.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::caches {

inline constexpr std::string_view kFormat = "kvbench-caches";
inline constexpr Index kVersion = 1;

/// Opens a caches file without surveying it. Errors: as InputFile's.
h5::InputFile open(const std::string& path);
/// The paths and attributes of docs/trace_format.md.
const h5::Request& request();

/// Below a group.
inline std::string entry_path(const CachePlace& place) {
  return fmt::format("prompts/{}/layers/{}/{}", place.prompt, place.layer, place.kv_head);
}

}  // namespace kvbench::caches
