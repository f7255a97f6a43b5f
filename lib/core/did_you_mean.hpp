// What a user may have meant by a word that is none of those expected.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace kvbench {

/// Least number of letters to insert, delete, replace, or swap with their neighbour, so that `a`
/// becomes `b`; no letter is edited twice (optimal string alignment). Time |a| |b|.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// " (did you mean WORD?)" for the known word that is nearest to `got`, the first of equals; empty
/// where none is near: a third of the letters may be wrong, and one in any case; upper and lower
/// case are alike. Stands behind the word that was got in a message.
std::string did_you_mean(std::string_view got, std::span<const std::string> known);

}  // namespace kvbench
