// Suggestions for misspelt words.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvbench {

/// " (did you mean WORD?)" for the known word nearest to `got` (ties to the first), or "" if none
/// is within a third of the letters (at least one). Case is ignored. Goes after the word in a
/// message.
std::string did_you_mean(std::string_view got, std::span<const std::string> known);

}  // namespace kvbench
