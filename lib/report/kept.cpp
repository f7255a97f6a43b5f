#include "report/kept.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <iterator>

#include "core/error.hpp"

namespace kvbench {
namespace {

constexpr std::array<std::string_view, 15> kJoined = {
    "schema", "trace",  "prompt", "layer",  "kv_head", "algorithm", "params",          "protocol",
    "sink",   "recent", "scores", "device", "seed",    "n_tokens",  "budget_requested"};
constexpr std::array<std::string_view, 1> kOwn = {"tokens"};

[[noreturn]] void refuse(std::string_view part, Index n) {
  throw InputError(
      fmt::format("kept tokens `{}`, expected ascending positions below {} and ranges "
                  "a-b of them, with single spaces",
                  part, n));
}

}  // namespace

const SideTable& kept_table() {
  static const SideTable table("kept", kJoined, kOwn);
  return table;
}

Fields kept_fields(std::span<const std::string> row, const KeptSet& kept) {
  const std::array<std::string, 1> own = {ranges_text(kept.tokens)};
  return kept_table().line(row, kept.position, own);
}

std::string ranges_text(std::span<const Index> tokens) {
  std::string out;
  for (std::size_t i = 0; i < tokens.size();) {
    std::size_t last = i;
    while (last + 1 < tokens.size() && tokens[last + 1] == tokens[last] + 1) {
      ++last;
    }
    fmt::format_to(std::back_inserter(out), "{}{}", out.empty() ? "" : " ", tokens[i]);
    if (last > i) {
      fmt::format_to(std::back_inserter(out), "-{}", tokens[last]);
    }
    i = last + 1;
  }
  return out;
}

std::vector<Index> parse_ranges(std::string_view text, Index n) {
  std::vector<Index> out;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view part = text.substr(0, space);
    const char* const end = part.data() + part.size();
    Index first = 0;
    auto [rest, error] = std::from_chars(part.data(), end, first);
    Index last = first;
    if (error == std::errc() && rest != end && *rest == '-') {
      const auto second = std::from_chars(rest + 1, end, last);
      rest = second.ptr;
      error = second.ec;
    }
    if (error != std::errc() || rest != end || first < 0 || last < first || last >= n ||
        (!out.empty() && first <= out.back())) {
      refuse(part, n);
    }
    for (Index i = first; i <= last; ++i) {
      out.push_back(i);
    }
    if (space == std::string_view::npos) {
      break;
    }
    text.remove_prefix(space + 1);
    if (text.empty()) {
      refuse(" ", n);
    }
  }
  return out;
}

}  // namespace kvbench
