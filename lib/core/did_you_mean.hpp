// Suggestions for misspelt words.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kvbench {

/// Optimal string alignment distance: insertions, deletions, replacements and swaps of neighbours,
/// no letter edited twice. Time |a| |b|.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// " (did you mean WORD?)" for the known word nearest to `got` (ties to the first), or "" if none
/// is within a third of the letters (at least one). Case is ignored. Goes after the word in a
/// message.
std::string did_you_mean(std::string_view got, std::span<const std::string> known);

}  // namespace kvbench
