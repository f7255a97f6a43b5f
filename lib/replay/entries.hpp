// The entries of a plan: combinations of variant, budget and seed. Seeds are shared, so an entry
// takes no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

namespace kvbench {

/// What is run on every unit.
struct Entry {
  std::size_t variant = 0;       ///< index into PlanSpec::variants
  std::optional<double> budget;  ///< fraction; nullopt: native parameters
  std::uint64_t seed = 0;
  std::size_t cache_group = 0;  ///< evaluate: index of LoadedCaches' group
};

/// Ascending.
using Seeds = std::shared_ptr<const std::vector<std::uint64_t>>;

class Entries {
 public:
  /// Consecutive entries that differ only in the seed.
  struct Setting {
    Entry first;  ///< with the first seed
    Seeds seeds;
    std::size_t begin = 0;  ///< number of the first entry

    std::size_t end() const { return begin + seeds->size(); }
  };

  Entries() = default;
  Entries(std::initializer_list<Entry> entries);

  /// Appends one entry per seed. `seeds` must not be empty.
  void add(std::size_t variant, std::optional<double> budget, const Seeds& seeds);
  void push_back(const Entry& entry);
  void clear() { settings_.clear(); }

  std::size_t size() const { return settings_.empty() ? 0 : settings_.back().end(); }
  bool empty() const { return settings_.empty(); }
  Entry operator[](std::size_t number) const;
  Entry front() const { return (*this)[0]; }
  const std::vector<Setting>& settings() const { return settings_; }
  const Setting& setting_of(std::size_t number) const;

 private:
  std::vector<Setting> settings_;
};

}  // namespace kvbench
