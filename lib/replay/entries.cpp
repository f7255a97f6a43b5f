#include "replay/entries.hpp"

#include <algorithm>
#include <iterator>

namespace kvbench {

Entries::Entries(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) {
    push_back(entry);
  }
}

void Entries::add(std::size_t variant, std::optional<double> budget, const Seeds& seeds) {
  settings_.push_back({{variant, budget, seeds->front()}, seeds, size()});
}

void Entries::push_back(const Entry& entry) {
  settings_.push_back({entry, std::make_shared<std::vector<std::uint64_t>>(1, entry.seed), size()});
}

const Entries::Setting& Entries::setting_of(std::size_t number) const {
  return *std::prev(std::ranges::upper_bound(settings_, number, {}, &Setting::begin));
}

Entry Entries::operator[](std::size_t number) const {
  const Setting& setting = setting_of(number);
  Entry out = setting.first;
  out.seed = (*setting.seeds)[number - setting.begin];
  return out;
}

}  // namespace kvbench
