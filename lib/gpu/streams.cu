#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/operations.cuh"
#include "gpu/team.cuh"

namespace kvbench::gpu {
namespace {

constexpr int kThreads = 512;

template <class Stream, class Decision>
class Decided final : public Stream {
 public:
  explicit Decided(std::vector<Decision> log) : log_(std::move(log)) {}
  Decision step(Index j) override { return log_.at(j); }

 private:
  std::vector<Decision> log_;
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    evict_kernel(EvictionState<T> state, Index n, Eviction* log) {
  const BlockTeam<kThreads> team;
  for (Index j = 0; j < n; ++j) {
    const Eviction gone = evict_step(team, state, j);
    team.once([&] { log[j] = gone; });
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    retain_kernel(RetentionState<T> state, Index n, Departure* log) {
  const BlockTeam<kThreads> team;
  for (Index j = 0; j < n; ++j) {
    const Departure gone = retain_step(team, state, LogPhi(), j);
    team.once([&] { log[j] = gone; });
  }
}

template <class Stream, class Decision, class State>
std::unique_ptr<Stream> run(const DeviceHead& head, void (*kernel)(State, Index, Decision*),
                            const State& state) {
  const Index n = head.host->n();
  const Array<Decision> log(head.device, n);
  head.device.launch(kernel, n > 0 ? 1 : 0, kThreads, state, n, log.data());
  std::vector<Decision> decided(n);
  log.get(decided);
  return std::make_unique<Decided<Stream, Decision>>(std::move(decided));
}

template <class T>
std::unique_ptr<EvictionStream> evictions_in(const DeviceHead& head, const EvictionRules& rules) {
  EvictionState<T> state;
  static_cast<StreamHead&>(state) = device_head(head);
  state.rules = rules;
  DeviceArena arena(head.device);
  reserve(state, most_held(rules, head.host->n()), arena);
  return run<EvictionStream, Eviction>(head, evict_kernel<T>, state);
}

template <class T>
std::unique_ptr<RetentionStream> retention_in(const DeviceHead& head, const RetentionRules& rules) {
  auto state = retention_state<T>(device_head(head), head.host->n(), rules);
  DeviceArena arena(head.device);
  reserve(state, std::min(rules.kept, head.host->n()) + 1, arena);
  return run<RetentionStream, Departure>(head, retain_kernel<T>, state);
}

}  // namespace

std::unique_ptr<EvictionStream> evictions(const DeviceHead& head, const EvictionRules& rules) {
  return with_element(head.host->precision,
                      [&](auto element) { return evictions_in<decltype(element)>(head, rules); });
}

std::unique_ptr<RetentionStream> retention(const DeviceHead& head, const RetentionRules& rules) {
  if (!rules.phi.is_log() && rules.lambda > 0.0 && rules.lambda < 1.0) {
    return open_retention(*head.host, rules);
  }
  return with_element(head.host->precision,
                      [&](auto element) { return retention_in<decltype(element)>(head, rules); });
}

}  // namespace kvbench::gpu
