#include "core/did_you_mean.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvbench {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the distance table: two before, one before, current.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> now(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    now[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, now);
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
  }
  return now[b.size()];
}

namespace {

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
