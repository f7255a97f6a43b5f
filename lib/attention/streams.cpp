#include "attention/streams.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace kvbench {
namespace {

std::vector<const float*> query_rows(const KvHead& head) {
  std::vector<const float*> out;
  out.reserve(head.q.size());
  for (const Matrix& q : head.q) {
    out.push_back(q.data());
  }
  return out;
}

// `queries` must outlive the result.
StreamHead host_head(const KvHead& head, const std::vector<const float*>& queries) {
  return stream_head(head, head.k.data(), queries.data(), sink_logits_of(head));
}

template <class T>
class CpuEviction final : public EvictionStream {
 public:
  CpuEviction(const KvHead& head, const EvictionRules& rules)
      : tokens_(head, most_held(rules, head.n()), rules) {}

  Eviction step(Index j) override { return tokens_.step(j); }

 private:
  AttendedTokens<T> tokens_;
};

template <class T>
class CpuRetention final : public RetentionStream {
 public:
  CpuRetention(const KvHead& head, const RetentionRules& rules)
      : queries_(query_rows(head)),
        state_(retention_state<T>(host_head(head, queries_), head.n(), rules)) {
    reserve(state_, std::min(rules.kept, head.n()) + 1, arena_);
  }

  Departure step(Index j) override { return retain_step(OneThread(), state_, state_.rules.phi, j); }

 private:
  HostArena arena_;
  std::vector<const float*> queries_;
  RetentionState<T> state_;
};

template <class T>
class CpuRevival final : public ReviveStream {
 public:
  CpuRevival(const KvHead& head, const ReviveTask& task)
      : queries_(query_rows(head)),
        state_(task.state<T>(host_head(head, queries_), head.n())),
        scores_(head.n()) {
    state_.scores = scores_.data();
    reserve(state_, arena_);
  }

  std::span<const ReviveMove> step(const ReviveStep& step) override {
    moves_.resize(max_moves(state_));
    state_.moves = moves_.data();
    state_.moved = 0;
    revive_step(OneThread(), state_, step);
    return std::span(moves_).first(state_.moved);
  }

  std::span<const float> scores() const override { return scores_; }

 private:
  HostArena arena_;
  std::vector<const float*> queries_;
  ReviveState<T> state_;
  std::vector<float> scores_;
  std::vector<ReviveMove> moves_;
};

}  // namespace

template <class T>
AttendedTokens<T>::AttendedTokens(const KvHead& head, Index capacity, const EvictionRules& rules)
    : capacity_(capacity), queries_(query_rows(head)) {
  static_cast<StreamHead&>(state_) = host_head(head, queries_);
  state_.rules = rules;
  reserve(state_, capacity, arena_);
}

template <class T>
void AttendedTokens<T>::add(Index token) {
  if (state_.held >= capacity_) {
    throw std::logic_error("attended tokens: all " + std::to_string(capacity_) +
                           " slots are held, cannot add token " + std::to_string(token));
  }
  join(OneThread(), state_, token);
}

template class AttendedTokens<float>;
template class AttendedTokens<double>;

template <class T>
ReviveState<T> ReviveTask::state(const StreamHead& head, Index n) const {
  ReviveState<T> s;
  static_cast<StreamHead&>(s) = head;
  s.rules = rules;
  s.n = n;
  s.sketch.hashes = hashes.data();
  s.sketch.rows = static_cast<Index>(hashes.size());
  s.sketch.per_row = cells;
  s.sketch.width = head.d;
  s.sketch.dtype = dtype;
  s.sketch.kind = estimate;
  return s;
}

template ReviveState<float> ReviveTask::state(const StreamHead&, Index) const;
template ReviveState<double> ReviveTask::state(const StreamHead&, Index) const;

std::unique_ptr<EvictionStream> open_eviction(const KvHead& head, const EvictionRules& rules) {
  return with_element(head.precision, [&](auto element) -> std::unique_ptr<EvictionStream> {
    return std::make_unique<CpuEviction<decltype(element)>>(head, rules);
  });
}

std::unique_ptr<RetentionStream> open_retention(const KvHead& head, const RetentionRules& rules) {
  return with_element(head.precision, [&](auto element) -> std::unique_ptr<RetentionStream> {
    return std::make_unique<CpuRetention<decltype(element)>>(head, rules);
  });
}

std::unique_ptr<ReviveStream> open_revival(const KvHead& head, const ReviveTask& task) {
  return with_element(head.precision, [&](auto element) -> std::unique_ptr<ReviveStream> {
    return std::make_unique<CpuRevival<decltype(element)>>(head, task);
  });
}

}  // namespace kvbench
