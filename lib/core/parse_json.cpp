#include "core/parse_json.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.hpp"

namespace kvbench {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 64;

// An open array or object, and where in it the parser is.
struct Level {
  bool array = false;
  std::size_t items = 0;  // of an array
  std::string key = {};   // of an object: the last
  std::set<std::string> keys = {};
};

std::string place(const std::vector<Level>& levels) {
  std::string out;
  for (const Level& level : levels) {
    out +=
        level.array ? fmt::format("[{}]", level.items - 1) : (out.empty() ? "" : ".") + level.key;
  }
  return out;
}

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  std::vector<Level> levels;
  const auto check = [&](int, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::object_end || event == Event::array_end) {
      levels.pop_back();
      return true;
    }
    if (event == Event::key) {
      Level& object = levels.back();
      object.key = value.get<std::string>();
      if (!object.keys.insert(object.key).second) {
        throw InputError(fmt::format("{}: {}: duplicate key", source, place(levels)));
      }
      return true;
    }
    if (!levels.empty() && levels.back().array) {
      ++levels.back().items;
    }
    if (event != Event::value) {
      if (levels.size() == kDeepest) {
        throw InputError(fmt::format("{}: {}: nested more than {} levels deep", source,
                                     place(levels), kDeepest));
      }
      levels.push_back({event == Event::array_start});
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: not readable as JSON: {}", source, error.what()));
  }
}

}  // namespace kvbench
