// What a plan runs on every unit, by number: variants, their budgets, their seeds. Seeds are
// shared, so that an entry takes no memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

namespace kvbench {

/// What is run on every unit.
struct Entry {
  std::size_t variant = 0;
  std::optional<double> budget;
  std::uint64_t seed = 0;
  std::size_t cache_group = 0;  ///< evaluate: which of LoadedCaches' groups
};

/// Ascending.
using Seeds = std::shared_ptr<const std::vector<std::uint64_t>>;

class Entries {
 public:
  /// Entries that differ in the seed alone; they follow each other.
  struct Setting {
    Entry first;  ///< with the first seed
    Seeds seeds;
    std::size_t begin = 0;  ///< the first one's number

    std::size_t end() const { return begin + seeds->size(); }
  };

  Entries() = default;
  Entries(std::initializer_list<Entry> entries);

  /// One for each of the seeds, of which there is at least one.
  void add(std::size_t variant, std::optional<double> budget, const Seeds& seeds);
  void push_back(const Entry& entry);
  void clear() { settings_.clear(); }

  std::size_t size() const { return settings_.empty() ? 0 : settings_.back().end(); }
  bool empty() const { return settings_.empty(); }
  Entry operator[](std::size_t number) const;
  Entry front() const { return (*this)[0]; }
  const std::vector<Setting>& settings() const { return settings_; }
  const Setting& setting_of(std::size_t number) const;

  class Iterator {
   public:
    using value_type = Entry;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    Iterator(const Entries* entries, std::size_t number) : entries_(entries), number_(number) {}
    Entry operator*() const { return (*entries_)[number_]; }
    Iterator& operator++() {
      ++number_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++number_;
      return before;
    }
    bool operator==(const Iterator& other) const = default;

   private:
    const Entries* entries_ = nullptr;
    std::size_t number_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  std::vector<Setting> settings_;
};

}  // namespace kvbench
