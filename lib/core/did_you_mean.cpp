#include "core/did_you_mean.hpp"

#include <algorithm>
#include <vector>

namespace kvbench {
namespace {

// Optimal string alignment: insertions, deletions, replacements and swaps of neighbours, no letter
// edited twice.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector distance(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      std::size_t& here = distance[i][j];
      if (i == 0 || j == 0) {
        here = i + j;
        continue;
      }
      here = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1,
                       distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        here = std::min(here, distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance.back().back();
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  });
  return out;
}

}  // namespace

std::string did_you_mean(std::string_view got, std::span<const std::string> known) {
  constexpr std::size_t kLongest = 64;  // longer than any known word
  if (got.empty() || got.size() > kLongest) {
    return "";
  }
  std::size_t nearest = std::max<std::size_t>(1, got.size() / 3) + 1;
  const std::string wanted = lower_case(got);
  std::string_view word;
  for (const std::string& one : known) {
    const std::size_t distance = edit_distance(wanted, lower_case(one));
    // Words of one letter are all near each other.
    if (distance < nearest && distance < one.size()) {
      nearest = distance;
      word = one;
    }
  }
  return word.empty() ? "" : " (did you mean " + std::string(word) + "?)";
}

}  // namespace kvbench
