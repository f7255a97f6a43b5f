// The one parser of JSON: policies and manifests may come from anywhere.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kvbench {

/// Throws InputError (`source`, which begins the message; place; reason) if the text is no JSON, is
/// nested more than 64 levels deep (copying and writing a value recurse), or an object has a key
/// twice.
nlohmann::json parse_json(std::string_view text, const std::string& source);

}  // namespace kvbench
