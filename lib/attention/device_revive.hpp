// A stream with revival on a machine: the launches around revive_kernels.hpp.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "attention/device_tensors.hpp"
#include "attention/revive_kernels.hpp"
#include "core/error.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Decides a whole stream (revive_stream.hpp) on a machine, on one block of it. Memory: keys as
/// attended 4 n d, logits 16 group n, the sketch's keys 4 rows cells d, some 40 n beside. Throws
/// InputError where d > 4096.
template <class M>
ReviveLog revive_on(M& machine, const HeadTensors<M>& head, const ReviveRules& rules) {
  constexpr Index kMostMoves = Index{1} << 16;
  constexpr Index kMostPhases = Index{1} << 15;
  const KvHead& h = *head.head;
  const Index n = h.n();
  const Index d = h.d();
  const Index group = h.group();
  ReviveLog out;
  out.scores.assign(static_cast<std::size_t>(n), 0.0F);
  if (rules.steps.empty()) {
    return out;
  }
  if (d > PanelAttention::kQueryRoom) {
    throw InputError("revive: a key on a device has at most " +
                     std::to_string(PanelAttention::kQueryRoom) + " channels, got " +
                     std::to_string(d));
  }

  std::vector<ReviveStep> steps(rules.steps.begin(), rules.steps.end());
  std::vector<Index> inserted;
  for (const ReviveStep& s : steps) {
    if (s.insert >= 0) {
      inserted.push_back(s.insert);
    }
  }
  steps.push_back(steps.back());  // what the state points to after the last
  int attention_phases = 6;       // rebuild, team_tops, tops, exponentials, sums, scores
  for (Index g = 0; g < group; g += PanelAttention::heads_in_pass(g, group, d)) {
    attention_phases += 2;  // prepare, logits
  }

  const Index sketch_rows = static_cast<Index>(rules.hashes.size());
  const Index cells = sketch_rows * rules.cells;
  const Index panels = KeyPanels::panels(n);
  const Index room = std::clamp<Index>(
      static_cast<Index>(machine.scratch_bytes() / sizeof(ReviveMove)), 1, kMostMoves);
  const Array<ReviveStep, M> step_list(machine, std::span<const ReviveStep>(steps));
  const Array<Index, M> inserted_list(machine, std::span<const Index>(inserted));
  const Array<SketchHash, M> hashes(machine, rules.hashes);
  Array<float, M> cell_keys(machine, cells * d);
  Array<std::uint32_t, M> counts(machine, cells);
  Array<std::uint32_t, M> epochs(machine, cells);
  const Array<float, M> panel_keys(machine, panels * KeyPanels::kLanes * d);
  const Array<std::uint32_t, M> stale(machine, panels);
  Array<RevivePlace, M> places(machine, n);
  const Array<float, M> scores(machine, std::span<const float>(out.scores));
  const Array<double, M> logits(machine, n * group);
  const Array<double, M> logits_ahead(machine, n * group);
  const Array<double, M> thread_most(machine, group * PanelAttention::kThreads);
  const Array<double, M> team_most(machine, group * PanelAttention::kTeam);
  const Array<double, M> most(machine, group);
  const Array<double, M> inverse(machine, group);
  const Array<ReviveMove, M> log(machine, room);
  cell_keys.zero();
  counts.zero();
  epochs.zero();
  places.zero();
  static_assert(static_cast<int>(RevivePlace::other) == 0);

  const PanelAttention attention{{panel_keys.data(), d},
                                 head.q_rows.data(),
                                 group,
                                 h.scale,
                                 {logits.data(), logits_ahead.data()},
                                 thread_most.data(),
                                 team_most.data(),
                                 most.data(),
                                 inverse.data()};
  const SketchKeys sketch{
      hashes.data(), cell_keys.data(), counts.data(), epochs.data(), sketch_rows, rules.cells, d,
      rules.dtype,   rules.estimate};
  const RevivePart part{step_list.data(),
                        inserted_list.data(),
                        static_cast<Index>(rules.steps.size()),
                        h.q_start(),
                        rules.recent,
                        rules.slack,
                        rules.candidates,
                        rules.replace_rate,
                        rules.reduce,
                        attention_phases,
                        sketch,
                        attention,
                        stale.data(),
                        places.data(),
                        scores.data(),
                        log.data(),
                        room};

  machine.launch(FillPanels{head.k.data(), attention.panels, n}, panels);
  ReviveState state;
  Array<ReviveState, M> saved(machine, 1);
  std::vector<ReviveMove> moves;
  while (state.step < part.step_count) {
    // Two more phases fetch and store the state; steps take some twenty, and more where tokens
    // move.
    const Index wanted = 2 + (part.step_count - state.step) * (attention_phases + 8);
    saved.put(std::span<const ReviveState>(&state, 1));
    machine.launch(ReviveRun{part, saved.data(),
                             static_cast<int>(std::min(std::max<Index>(wanted, 64), kMostPhases))},
                   1);
    saved.get(std::span(&state, 1));
    moves.resize(static_cast<std::size_t>(state.moves));
    log.get(moves);
    out.moves.insert(out.moves.end(), moves.begin(), moves.end());
    state.moves = 0;
  }
  scores.get(out.scores);
  return out;
}

}  // namespace kvbench
