#include "attention/revive_stream.hpp"

#include <vector>

namespace kvbench {
namespace {

template <class T>
class CpuRevival final : public ReviveStream {
 public:
  CpuRevival(const KvHead& head, const ReviveTask& task)
      : state_(task.state<T>(head)), scores_(head.n()) {
    for (const Matrix& queries : head.q) {
      queries_.push_back(queries.data());
    }
    state_.k = head.k.data();
    state_.sink_logits = sink_logits_of(head);
    state_.q = queries_.data();
    state_.scores = scores_.data();
    reserve(state_, memory_);
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
  ReviveState<T> state_;
  HostArena memory_;
  std::vector<const float*> queries_;
  std::vector<float> scores_;
  std::vector<ReviveMove> moves_;
};

}  // namespace

template <class T>
ReviveState<T> ReviveTask::state(const KvHead& head) const {
  ReviveState<T> s;
  s.rules = rules;
  s.n = head.n();
  s.d = head.d();
  s.group = head.group();
  s.q_start = head.q_start();
  s.scale = head.scale;
  s.sketch.hashes = hashes.data();
  s.sketch.rows = static_cast<Index>(hashes.size());
  s.sketch.per_row = cells;
  s.sketch.width = head.d();
  s.sketch.dtype = dtype;
  s.sketch.kind = estimate;
  return s;
}

template ReviveState<float> ReviveTask::state(const KvHead&) const;
template ReviveState<double> ReviveTask::state(const KvHead&) const;

Index revival_bytes(Precision precision, Index n, Index d, Index group, Index rows, Index cells) {
  return with_element(precision, [&](auto element) {
    ReviveState<decltype(element)> state;
    state.n = n;
    state.d = d;
    state.group = group;
    state.sketch.rows = rows;
    state.sketch.per_row = cells;
    ArenaBytes size;
    reserve(state, size);
    return size.bytes + 4 * n;  // scores
  });
}

std::unique_ptr<ReviveStream> open_revival(const KvHead& head, const ReviveTask& task) {
  return with_element(head.precision, [&](auto element) -> std::unique_ptr<ReviveStream> {
    return std::make_unique<CpuRevival<decltype(element)>>(head, task);
  });
}

}  // namespace kvbench
