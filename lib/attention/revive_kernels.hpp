// The block kernel of a stream with revival (revive_stream.hpp): one block lives through all steps.
// Threads meet between the operations of ReviveOp; which one comes next is thread 0's to say, one
// phase ahead, in a state of two slots: all threads read one, thread 0 writes the other. A launch
// has a fixed number of phases; what it does not get done, the next launch resumes.
//
// Floor of a step that attends n tokens, a group of G: G n d FMAs in float64 and G n exponentials
// over all 512 threads, a token each at a time; 4 n d bytes of keys and 32 G n of logits; n
// additions one after another, by a thread per query head; 5 n bytes for each token that moves.
// Meanwhile the other warps make the logits of the next step, which stand if no token moves. After
// moves: d medians over the rows for every token of the sketch with a changed cell. At n = 32768,
// G = 4, d = 128 one multiprocessor makes the 17 million FMAs at 64 a cycle in 0.26 million cycles,
// reads 16 MiB at 64 bytes a cycle in as many, and adds up in as many (8 cycles an addition).
#pragma once

#include <cstdint>

#include "attention/panel_attention.hpp"
#include "attention/revive_state.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// All steps. One launch block.
struct ReviveRun {
  static constexpr int kThreads = PanelAttention::kThreads;
  static constexpr int kTeam = 32;  // threads that rebuild a token together
  static constexpr int kTeams = kThreads / kTeam;
  struct Shared {
    ReviveState state[2];
    double queries[PanelAttention::kQueryRoom];  // of this pass
    Standing weakest[kThreads], strongest[kThreads];
    Standing weakest_of[kTeam], strongest_of[kTeam];
  };

  RevivePart part;
  ReviveState* saved;
  int phase_count;

  KVB_HD int phases(Index) const { return phase_count; }

  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    ReviveState& now = shared.state[phase % 2];
    ReviveState& next = shared.state[(phase + 1) % 2];
    if (phase == 0) {
      if (thread == 0) {
        next = *saved;
        next.op = next.op == ReviveOp::wait ? next.resume : next.op;
      }
    } else if (phase == phase_count - 1) {
      if (thread == 0) {
        *saved = now;
      }
    } else {
      work(now, thread, shared);
      if (thread == 0) {
        next = after(now, phase_count - 2 - phase, shared);
      }
    }
  }

 private:
  KVB_HD void work(const ReviveState& now, int thread, Shared& shared) const {
    const PanelAttention& attention = part.attention;
    const Index seen = part.step(now).position + 1;
    double* logits = attention.logits[now.buffer];
    switch (now.op) {
      case ReviveOp::prepare:
        attention.load(now.head, part.query_row(now.step), thread, shared.queries);
        if (now.stale) {
          mark(now, thread, seen);
        }
        break;
      case ReviveOp::rebuild: rebuild(thread, seen); break;
      case ReviveOp::logits:
        attention.multiply(now.head, 0, thread, seen, shared.queries, logits);
        break;
      case ReviveOp::team_tops: attention.team_tops(thread); break;
      case ReviveOp::tops: attention.tops(thread); break;
      case ReviveOp::exponentials:
        attention.exponentials(thread, seen, logits);
        if (part.can_go_ahead(now)) {
          attention.load(0, part.query_row(now.step + 1), thread, shared.queries);
        }
        break;
      case ReviveOp::sums:
        attention.sums(thread, seen, logits);
        if (part.can_go_ahead(now)) {
          // The first warp adds up.
          attention.multiply(0, kTeam, thread, part.steps[now.step + 1].position + 1,
                             shared.queries, attention.logits[1 - now.buffer]);
        }
        break;
      case ReviveOp::scores:
        attention.add_to(part.scores, part.reduce, thread, seen, logits);
        break;
      case ReviveOp::insert: leave_recent(now, thread); break;
      case ReviveOp::scan:
        move_keys(now, thread);
        scan(thread, seen, shared);
        break;
      case ReviveOp::finalists:
        move_counts(now, thread);
        finalists(thread, shared);
        break;
      case ReviveOp::begin:
      case ReviveOp::decide:
      case ReviveOp::wait: break;  // thread 0 alone
    }
  }

  // Which tokens have to be rebuilt.
  KVB_HD void mark(const ReviveState& now, int thread, Index seen) const {
    for (Index panel = thread; panel * KeyPanels::kLanes < seen; panel += kThreads) {
      std::uint32_t mask = 0;
      for (Index l = 0; l < KeyPanels::kLanes; ++l) {
        const Index token = panel * KeyPanels::kLanes + l;
        if (token < seen && part.places[token] == RevivePlace::vague &&
            part.sketch.changed(token, now.epoch)) {
          mask |= std::uint32_t{1} << static_cast<unsigned>(l);
        }
      }
      part.stale_tokens[panel] = mask;
    }
  }

  // A team per panel, its threads side by side over the channels of a token.
  KVB_HD void rebuild(int thread, Index seen) const {
    for (Index panel = thread / kTeam; panel * KeyPanels::kLanes < seen; panel += kTeams) {
      const std::uint32_t mask = part.stale_tokens[panel];
      for (Index l = 0; mask != 0 && l < KeyPanels::kLanes; ++l) {
        if ((mask >> static_cast<unsigned>(l) & 1U) != 0) {
          const Index token = panel * KeyPanels::kLanes + l;
          part.sketch.estimate(token, part.attention.panels.at(token), thread % kTeam, kTeam);
        }
      }
    }
  }

  KVB_HD void leave_recent(const ReviveState& now, int thread) const {
    for (Index i = now.left_recent + thread; i < part.left_after(now); i += kThreads) {
      part.places[part.inserted[i]] = RevivePlace::candidate;
    }
  }

  // What was decided last: the token that comes back gets the key that was estimated, and its cells
  // lose it; the cells of the one that goes gain its key. A thread per channel.
  KVB_HD void move_keys(const ReviveState& now, int thread) const {
    if (now.out < 0) {
      return;
    }
    const KeyPanels& panels = part.attention.panels;
    for (Index t = thread; t < panels.d; t += kThreads) {
      if (now.in >= 0) {
        const float key = part.sketch.key(now.in, t);
        part.sketch.add(now.in, t, -key);
        panels.at(now.in)[t * KeyPanels::kLanes] = key;
      }
      part.sketch.add(now.out, t, panels.at(now.out)[t * KeyPanels::kLanes]);
    }
  }

  // A thread per row.
  KVB_HD void move_counts(const ReviveState& now, int thread) const {
    if (now.out < 0 || thread >= part.sketch.rows) {
      return;
    }
    if (now.in >= 0) {
      part.sketch.count(thread, now.in, ~0U, now.epoch);
    }
    part.sketch.count(thread, now.out, 1U, now.epoch);
  }

  KVB_HD void scan(int thread, Index seen, Shared& shared) const {
    Standing weakest, strongest;
    for (Index i = thread; i < seen; i += kThreads) {
      const RevivePlace place = part.places[i];
      const Standing own{part.scores[i], static_cast<std::int32_t>(i)};
      if (place == RevivePlace::candidate && weaker(own, weakest)) {
        weakest = own;
      }
      if (place == RevivePlace::vague && stronger(own, strongest)) {
        strongest = own;
      }
    }
    shared.weakest[thread] = weakest;
    shared.strongest[thread] = strongest;
  }

  KVB_HD void finalists(int thread, Shared& shared) const {
    if (thread >= kTeam) {
      return;
    }
    Standing weakest, strongest;
    for (int i = thread; i < kThreads; i += kTeam) {
      weakest = weaker(shared.weakest[i], weakest) ? shared.weakest[i] : weakest;
      strongest = stronger(shared.strongest[i], strongest) ? shared.strongest[i] : strongest;
    }
    shared.weakest_of[thread] = weakest;
    shared.strongest_of[thread] = strongest;
  }

  // The state after `now`; `left`: phases of this launch that are left for work.
  KVB_HD ReviveState after(const ReviveState& now, int left, const Shared& shared) const {
    ReviveState next = now;
    switch (now.op) {
      case ReviveOp::begin: part.begin(next, left); break;
      case ReviveOp::prepare: next.op = now.stale ? ReviveOp::rebuild : ReviveOp::logits; break;
      case ReviveOp::rebuild:
        next.stale = false;
        ++next.epoch;
        next.op = ReviveOp::logits;
        break;
      case ReviveOp::logits:
        next.head += part.attention.heads_from(now.head);
        next.op = next.head < part.attention.group ? ReviveOp::prepare : ReviveOp::team_tops;
        break;
      case ReviveOp::team_tops: next.op = ReviveOp::tops; break;
      case ReviveOp::tops: next.op = ReviveOp::exponentials; break;
      case ReviveOp::exponentials: next.op = ReviveOp::sums; break;
      case ReviveOp::sums:
        next.ahead = part.can_go_ahead(now);
        next.op = ReviveOp::scores;
        break;
      case ReviveOp::scores: part.after_attention(next, left); break;
      case ReviveOp::insert:
        next.candidates += part.left_after(now) - now.left_recent;
        next.left_recent = part.left_after(now);
        ++next.inserted;
        part.settle(next, left);
        break;
      case ReviveOp::scan: next.op = ReviveOp::finalists; break;
      case ReviveOp::finalists: next.op = ReviveOp::decide; break;
      case ReviveOp::decide: {
        Standing weakest, strongest;
        for (int i = 0; i < kTeam; ++i) {
          weakest = weaker(shared.weakest_of[i], weakest) ? shared.weakest_of[i] : weakest;
          strongest =
              stronger(shared.strongest_of[i], strongest) ? shared.strongest_of[i] : strongest;
        }
        part.decide(next, weakest, strongest, left);
        break;
      }
      case ReviveOp::wait: break;
    }
    return next;
  }
};

}  // namespace kvbench
