// Internal to lib/trace: what reader and writer of a caches file (docs/caches.md) share.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "trace/caches.hpp"

namespace kvbench::caches {

inline constexpr std::string_view kFormat = "kvbench-caches";
inline constexpr Index kVersion = 1;

/// Below a group.
inline std::string entry_path(const CachePlace& place) {
  return fmt::format("prompts/{}/layers/{}/{}", place.prompt, place.layer, place.kv_head);
}

}  // namespace kvbench::caches
