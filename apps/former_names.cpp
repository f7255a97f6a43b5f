#include "former_names.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "terminal.hpp"

namespace kvbench {
namespace {

struct FormerName {
  std::string_view command;
  std::string_view former;
  std::string_view current;
};

constexpr std::array kFormerNames{
    FormerName{"replay", "out", "output"},
    FormerName{"evaluate", "out", "output"},
    FormerName{"cluster", "out", "output"},
    FormerName{"merge", "force", "overwrite"},
};

}  // namespace

std::string current_name(const std::string& command, const std::string& name) {
  const auto former = std::ranges::find_if(kFormerNames, [&](const FormerName& one) {
    return one.command == command && one.former == name;
  });
  if (former == kFormerNames.end()) {
    return name;
  }
  log("note: --{} is now --{}\n", former->former, former->current);
  return std::string(former->current);
}

std::vector<std::string> with_current_names(std::vector<std::string> words) {
  std::string command;
  for (std::size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    std::string& word = words[i];
    if (!word.starts_with("--")) {
      command = command.empty() && !word.starts_with('-') ? word : command;
      continue;
    }
    const std::size_t end = std::min(word.find('='), word.size());
    word.replace(2, end - 2, current_name(command, word.substr(2, end - 2)));
  }
  return words;
}

}  // namespace kvbench
