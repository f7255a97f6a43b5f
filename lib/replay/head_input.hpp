// The input of methods: a KV head of a trace.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/backend.hpp"
#include "attention/scores.hpp"
#include "replay/plan.hpp"
#include "replay/windows.hpp"

namespace kvbench {

/// A KV head with everything that its tasks refer to. Enough for surveys; jobs add the truth
/// (HeadContext, StreamContext).
class HeadInput {
 public:
  /// Takes the head, or reads it from the trace, and uploads it to the plan's device, if any. Reads
  /// all else that the unit's tasks refer to: what this throws, a job would.
  HeadInput(const Plan& plan, const Unit& unit, std::optional<KvHead> head = {},
            bool upload = true);
  HeadInput(const HeadInput&) = delete;  // tasks and the score book point into the object
  HeadInput& operator=(const HeadInput&) = delete;

  const Plan& plan() const { return plan_; }
  const Unit& unit() const { return unit_; }
  const KvHead& head() const& { return head_; }
  /// The head itself; the object is of no further use.
  KvHead head() && { return std::move(head_); }
  const HeadId& id() const { return id_; }
  const Windows& windows() const { return windows_; }
  const std::vector<Index>& middle() const { return middle_; }
  const Backend& backend() const { return device_ == nullptr ? cpu_backend() : *device_; }

  /// The task of an entry, without true_mass and share. Must not outlive the object.
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
  // Empty or null unless some variant reads them and the trace has them.
  Matrix o_proj_;
  std::vector<ExtraSet> extra_;
  std::vector<NamedScores> named_scores_;
  std::shared_ptr<const RopeTables> rope_;
};

/// Throws InputError if products of the head's values exceed the range of the plan's precision.
void check_range(const Plan& plan, const Unit& unit, const KvHead& head);

}  // namespace kvbench
