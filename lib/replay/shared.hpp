// Budgets that several heads share. Surveys all heads of the scope, one at a time in memory, and
// has the method divide the budget before any head is compressed.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "replay/job.hpp"
#include "replay/kept_heads.hpp"
#include "replay/plan.hpp"

namespace kvbench {

/// Heads that `jobs` share a budget with, themselves included: all KV heads of their layers,
/// replayed or not; for Scope::layers those of every replayed layer of their prompts. Empty if no
/// entry shares.
std::set<UnitKey> heads_to_survey(const Plan& plan, const std::vector<Index>& jobs);

/// Shares of the heads, for entries whose scope is wider than a head.
class SharedBudgets {
 public:
  /// Surveys heads_to_survey(). Takes heads from `kept` and returns them. Stops early if `stop`
  /// becomes true. An error of a method is stored with the shares.
  SharedBudgets(const Plan& plan, const std::vector<Index>& jobs, const std::atomic<bool>& stop,
                KeptHeads* kept = nullptr);

  /// Share of `unit` in entry number `entry`; null if the scope is a head.
  const ShareOrError* find(const Unit& unit, std::size_t entry) const;

 private:
  // Heads that share one budget, read so far.
  struct Surveyed {
    std::vector<Unit> units;
    std::vector<Survey> surveys;
    std::exception_ptr error;
  };
  void share_out(const Plan& plan, std::size_t entry, const Surveyed& group);

  std::map<std::pair<UnitKey, std::size_t>, ShareOrError> shares_;  // by entry
};

}  // namespace kvbench
