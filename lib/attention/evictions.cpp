#include "attention/evictions.hpp"

#include <stdexcept>

namespace kvbench {
namespace {

template <class T>
class CpuEvictions final : public EvictionStream {
 public:
  CpuEvictions(const KvHead& head, const EvictionRules& rules)
      : tokens_(head, most_held(rules, head.n()), rules) {}

  Eviction step(Index j) override { return tokens_.step(j); }

 private:
  AttendedTokens<T> tokens_;
};

}  // namespace

template <class T>
AttendedTokens<T>::AttendedTokens(const KvHead& head, Index capacity, const EvictionRules& rules)
    : capacity_(capacity) {
  for (const Matrix& q : head.q) {
    queries_.push_back(q.data());
  }
  state_.rules = rules;
  state_.k = head.k.data();
  state_.q = queries_.data();
  state_.q_start = head.q_start();
  state_.d = head.d();
  state_.group = head.group();
  state_.scale = head.scale;
  state_.sink_logits = sink_logits_of(head);
  reserve(state_, capacity, arena_);
}

template <class T>
void AttendedTokens<T>::add(Index token) {
  if (state_.held >= capacity_) {
    throw std::logic_error("attended tokens: no room");
  }
  join(OneThread(), state_, token);
}

template class AttendedTokens<float>;
template class AttendedTokens<double>;

Index attended_tokens_bytes(Precision precision, Index group, Index d, Index capacity) {
  return with_element(precision, [&](auto element) {
    EvictionState<decltype(element)> state;
    state.group = group;
    state.d = d;
    ArenaBytes size;
    reserve(state, capacity, size);
    return size.bytes;
  });
}

std::unique_ptr<EvictionStream> evictions(const KvHead& head, const EvictionRules& rules) {
  return with_element(head.precision, [&](auto element) -> std::unique_ptr<EvictionStream> {
    return std::make_unique<CpuEvictions<decltype(element)>>(head, rules);
  });
}

}  // namespace kvbench
