#include "replay/shard_costs.hpp"

#include <algorithm>
#include <utility>

namespace kvbench {

ShardCosts::ShardCosts(Index entries, std::vector<Times> units, std::vector<std::string> notes)
    : per_unit_(entries), entries_of_(std::move(units)), notes_(std::move(notes)) {
  for (const Times& entries_of_unit : entries_of_) {
    units_.push_back(units_.back() + entries_of_unit->back());
  }
}

Index ShardCosts::before(Index job) const {
  const Index unit = job / per_unit_;
  return units_[unit] + (job % per_unit_ == 0 ? 0 : (*entries_of_[unit])[job % per_unit_]);
}

Index ShardCosts::first_at(Index nanoseconds) const {
  // Find the unit, then the job in it.
  const Index unit = std::ranges::lower_bound(units_, nanoseconds) - units_.begin();
  if (unit == 0) {
    return 0;
  }
  const std::vector<Index>& entries = *entries_of_[unit - 1];
  return (unit - 1) * per_unit_ +
         (std::ranges::lower_bound(entries, nanoseconds - units_[unit - 1]) - entries.begin());
}

Index ShardCosts::boundary(Index i, Index count) const {
  if (i == count) {
    return static_cast<Index>(entries_of_.size()) * per_unit_;
  }
  const Index whole = units_.back();
  const Index target = whole / count * i + whole % count * i / count;  // no product overflows
  const Index job = first_at(target);
  return job > 0 && target - before(job - 1) <= before(job) - target ? first_at(before(job - 1))
                                                                     : job;
}

}  // namespace kvbench
