// A KV head of a trace as methods see it.
#pragma once

#include <memory>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/backend.hpp"
#include "attention/scores.hpp"
#include "replay/plan.hpp"
#include "replay/windows.hpp"

namespace kvbench {

/// A KV head as methods see it: what a survey of heads that share a budget needs, and no more.
class HeadInput {
 public:
  HeadInput(const Plan& plan, const Unit& unit);
  HeadInput(const HeadInput&) = delete;  // the score book points into the head
  HeadInput& operator=(const HeadInput&) = delete;

  const Plan& plan() const { return plan_; }
  const Unit& unit() const { return unit_; }
  const KvHead& head() const { return head_; }
  const HeadId& id() const { return id_; }
  const Windows& windows() const { return windows_; }
  const std::vector<Index>& middle() const { return middle_; }
  const Backend& backend() const { return device_ == nullptr ? cpu_backend() : *device_; }

  /// What an entry asks of its method here; without true mass and share.
  Task task(const Entry& entry) const;

 private:
  const Plan& plan_;
  const Unit& unit_;
  HeadId id_;
  KvHead head_;
  std::unique_ptr<Backend> device_;  // null: the CPU
  Windows windows_;
  std::vector<Index> middle_;
  ScoreBook book_;
  Matrix o_proj_;                           // empty: the same of output projections
  std::vector<ExtraSet> extra_;             // what variants ask for
  std::vector<NamedScores> named_scores_;   // the same
  std::shared_ptr<const RopeTables> rope_;  // null: no variant asks, or the trace has none
};

/// Throws InputError where products of the head's numbers leave the range of the plan's precision;
/// the run that the message asks for works.
void check_range(const Plan& plan, const Unit& unit, const KvHead& head);

}  // namespace kvbench
