#include <algorithm>
#include <vector>

#include "gpu/operations.cuh"
#include "gpu/team.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 512;

// Runs steps from `next` on while the log has space.
template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    revive_steps(ReviveState<T> state, const ReviveStep* steps, Index next, Index count,
                 Index capacity, ReviveState<T>* state_after, Index* next_after) {
  const BlockTeam<kThreads> team;
  for (; next < count && state.moved + max_moves(state) <= capacity; ++next) {
    revive_step(team, state, steps[next]);
  }
  team.once([&] {
    *state_after = state;
    *next_after = next;
  });
}

class Decided final : public ReviveStream {
 public:
  Decided(std::vector<ReviveMove> moves, std::vector<float> scores)
      : moves_(std::move(moves)), scores_(std::move(scores)), rest_(moves_) {}

  std::span<const ReviveMove> step(const ReviveStep& step) override {
    const auto other = [&](const ReviveMove& m) { return m.cause != step.insert; };
    const auto count = std::find_if(rest_.begin(), rest_.end(), other) - rest_.begin();
    const auto own = rest_.first(count);
    rest_ = rest_.subspan(own.size());
    return own;
  }

  std::span<const float> scores() const override { return scores_; }

 private:
  std::vector<ReviveMove> moves_;
  std::vector<float> scores_;
  std::span<const ReviveMove> rest_;
};

template <class T>
std::unique_ptr<ReviveStream> revive_in(const DeviceHead& head, const ReviveTask& task) {
  const Device& device = head.device;
  const auto count = static_cast<Index>(task.steps.size());
  const Array<ReviveStep> steps(device, task.steps);
  const Array<SketchHash> hashes(device, task.hashes);
  ReviveState<T> state = task.state<T>(device_head(head), head.host->n());
  state.sketch.hashes = hashes.data();
  DeviceArena arena(device);
  reserve(state, arena);
  // A step may move every Candidate.
  const ReviveRules& rules = task.rules;
  const Index capacity = std::min(state.n, rules.candidates + rules.recent + rules.slack) + 1 +
                         static_cast<Index>(std::min(device.scratch_bytes() / sizeof(ReviveMove),
                                                     std::size_t{1} << 16));
  const Array<ReviveMove> log(device, capacity);
  state.moves = log.data();
  std::vector<float> scores(state.n);
  const Array<float> score_list(device, std::span<const float>(scores));
  state.scores = score_list.data();

  const Array<ReviveState<T>> state_after(device, 1);
  const Array<Index> next_after(device, 1);
  std::vector<ReviveMove> moves;
  for (Index next = 0; next < count;) {
    state.moved = 0;
    device.launch(revive_steps<T>, 1, kThreads, state, steps.data(), next, count, capacity,
                  state_after.data(), next_after.data());
    state_after.get(std::span(&state, 1));
    next_after.get(std::span(&next, 1));
    const auto before = moves.size();
    moves.resize(before + static_cast<std::size_t>(state.moved));
    log.get(std::span(moves).subspan(before));
  }
  score_list.get(scores);
  return std::make_unique<Decided>(std::move(moves), std::move(scores));
}

}  // namespace

std::unique_ptr<ReviveStream> revive(const DeviceHead& head, const ReviveTask& task) {
  return with_element(head.host->precision,
                      [&](auto element) { return revive_in<decltype(element)>(head, task); });
}

}  // namespace kvbench::gpu
