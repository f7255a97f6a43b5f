// Budgets that several heads share: surveys every head of the scope, one at a time in memory, and
// asks the method for everybody's share before any of them is compressed.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <tuple>
#include <vector>

#include "replay/job.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Shares of heads in entries whose method's scope is wider than a head.
class SharedBudgets {
 public:
  /// Surveys what the jobs in `jobs` need: all KV heads of their layers, replayed or not, and for
  /// Scope::layers those of every replayed layer of their prompts. Reads no head where no entry
  /// shares. Stops early when `stop` becomes true. Errors of a method are kept for its rows.
  SharedBudgets(const Plan& plan, const std::vector<Index>& jobs, const std::atomic<bool>& stop);

  /// The share of `unit` in entry number `entry`; null where the entry's method shares nothing.
  const ShareOrError* find(const Unit& unit, std::size_t entry) const;

 private:
  using Key = std::tuple<std::size_t, std::size_t, std::size_t, Index, std::size_t>;
  static Key key(const Unit& unit, std::size_t entry);

  // Heads that share one budget, as far as they have been read.
  struct Surveyed {
    std::vector<Unit> units;
    std::vector<Survey> surveys;
    std::exception_ptr error;
  };
  void share_out(const Plan& plan, std::size_t entry, const Surveyed& group);

  std::map<Key, ShareOrError> shares_;
};

}  // namespace kvbench
