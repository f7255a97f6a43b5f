#include "attention/retention.hpp"

#include <algorithm>
#include <vector>

namespace kvbench {
namespace {

template <class T>
class CpuRetention final : public RetentionStream {
 public:
  CpuRetention(const KvHead& head, const RetentionRules& rules)
      : state_(retention_state<T>(head, rules)) {
    for (const Matrix& q : head.q) {
      queries_.push_back(q.data());
    }
    state_.k = head.k.data();
    state_.sink_logits = state_.group > 0 ? sink_logits_of(head) : nullptr;
    state_.q = queries_.data();
    reserve(state_, std::min(rules.kept, head.n()) + 1, arena_);
  }

  Departure step(Index j) override { return retain_step(OneThread(), state_, state_.rules.phi, j); }

 private:
  HostArena arena_;
  std::vector<const float*> queries_;
  RetentionState<T> state_;
};

}  // namespace

template <class T>
RetainedKeys<T>::RetainedKeys(Index capacity, Index d, Similarity kind, bool track) {
  state_.rules.lambda = track ? 1.0 : 0.0;
  state_.rules.kind = kind;
  state_.d = d;
  reserve(state_, capacity, arena_);
}

template class RetainedKeys<float>;
template class RetainedKeys<double>;

Index retention_bytes(Precision precision, Index group, Index d, Index kept, Index sink) {
  return with_element(precision, [&](auto element) {
    RetentionState<decltype(element)> state;
    state.group = group;
    state.d = d;
    state.sinks = sink;
    ArenaBytes size;
    reserve(state, kept + 1, size);
    return size.bytes;
  });
}

std::unique_ptr<RetentionStream> retention(const KvHead& head, const RetentionRules& rules) {
  return with_element(head.precision, [&](auto element) -> std::unique_ptr<RetentionStream> {
    return std::make_unique<CpuRetention<decltype(element)>>(head, rules);
  });
}

}  // namespace kvbench
