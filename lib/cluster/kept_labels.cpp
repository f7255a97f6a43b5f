#include "cluster/kept_labels.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvbench {
namespace {

std::vector<std::pair<std::string, std::string>> setting_fields(const KeptSetting& s) {
  std::vector<std::pair<std::string, std::string>> out{{"budget_requested", s.budget_requested}};
  for (std::size_t at = 0; at < s.params.size();) {
    const std::size_t end = std::min(s.params.find(';', at), s.params.size());
    const std::string part = s.params.substr(at, end - at);
    const std::size_t equals = std::min(part.find('='), part.size());
    out.emplace_back(part.substr(0, equals), part.substr(std::min(equals + 1, part.size())));
    at = end + 1;
  }
  out.emplace_back("seed", s.seed);
  return out;
}

}  // namespace

void KeptLabels::add(const KeptSetting& setting) {
  for (const auto& [name, value] : setting_fields(setting)) {
    seen_[{setting.algorithm, name}].insert(value);
  }
}

std::string KeptLabels::label(const KeptSetting& setting) const {
  std::string out = setting.algorithm;
  for (const auto& [name, value] : setting_fields(setting)) {
    if (!value.empty() && seen_.at({setting.algorithm, name}).size() > 1) {
      out += fmt::format(" {}={}", name, value);
    }
  }
  return out;
}

}  // namespace kvbench
