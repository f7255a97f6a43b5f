// Queries of one position over all tokens before it, by one block of threads: the phases of a
// softmax whose every probability is the CPU's to the bit (algorithms/revive_cache.cpp). Keys lie
// in panels of 32 tokens, so that a warp reads neighbouring tokens and every thread keeps the order
// of the channels of its own. Logits are [n, group]: the threads that add up the rows of the
// softmax, one per query head and in ascending order, read side by side.
#pragma once

#include <cmath>
#include <limits>

#include "attention/scores.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Keys, 32 tokens side by side: [n / 32, d, 32].
struct KeyPanels {
  static constexpr Index kLanes = 32;

  float* data;
  Index d;

  static KVB_HD Index panels(Index n) { return (n + kLanes - 1) / kLanes; }
  /// Channel t of the token lies kLanes * t behind this.
  KVB_HD float* at(Index token) const {
    return data + token / kLanes * d * kLanes + token % kLanes;
  }
};

/// Rows into panels, zeros beyond the last. A launch block per panel.
struct FillPanels {
  static constexpr int kThreads = 256;
  struct Shared {};

  const float* keys;  // [n, d]
  KeyPanels panels;
  Index n;

  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index token = block * KeyPanels::kLanes + thread % KeyPanels::kLanes;
    for (Index t = thread / KeyPanels::kLanes; t < panels.d; t += kThreads / KeyPanels::kLanes) {
      panels.at(token)[t * KeyPanels::kLanes] = token < n ? keys[token * panels.d + t] : 0.0F;
    }
  }
};

/// The phases, in the order of the functions; threads meet after each. `seen` tokens are attended.
struct PanelAttention {
  static constexpr int kThreads = 512;
  static constexpr int kTeam = 32;           // threads that reduce a row together
  static constexpr Index kQueryRoom = 4096;  // float64 numbers that load() takes
  static constexpr int kMostHeads = 8;       // that a thread has sums for

  KeyPanels panels;
  const float* const* queries;  // [group] -> [nq, d]
  Index group;
  double scale;
  double* logits[2];    // [n, group] each; exponentials take their place
  double* thread_most;  // [group, kThreads] largest logits
  double* team_most;    // [group, kTeam]
  double* most;         // [group]
  double* inverse;      // [group] of the softmax's sums

  /// Query heads of one pass, from `first` on.
  static KVB_HD int heads_in_pass(Index first, Index group, Index d) {
    Index heads = group - first < kMostHeads ? group - first : kMostHeads;
    heads = heads < kQueryRoom / d ? heads : kQueryRoom / d;
    return static_cast<int>(heads);
  }
  KVB_HD int heads_from(Index first) const { return heads_in_pass(first, group, panels.d); }

  /// to[t, h] = channel t of head first + h at a row of the queries, times the scale.
  KVB_HD void load(Index first, Index row, int thread, double* to) const {
    const int heads = heads_from(first);
    for (Index e = thread; e < heads * panels.d; e += kThreads) {
      const float* q = queries[first + e % heads] + row * panels.d;
      to[e] = static_cast<double>(q[e / heads]) * scale;
    }
  }

  /// Logits of the heads that were loaded, by threads `begin` and above, and the largest that each
  /// thread made.
  KVB_HD void multiply(Index first, int begin, int thread, Index seen, const double* loaded,
                       double* out) const {
    switch (heads_from(first)) {
      case 1: return pass<1, 4>(first, begin, thread, seen, loaded, out);
      case 2: return pass<2, 4>(first, begin, thread, seen, loaded, out);
      case 3: return pass<3, 4>(first, begin, thread, seen, loaded, out);
      case 4: return pass<4, 4>(first, begin, thread, seen, loaded, out);
      case 5: return pass<5, 2>(first, begin, thread, seen, loaded, out);
      case 6: return pass<6, 2>(first, begin, thread, seen, loaded, out);
      case 7: return pass<7, 2>(first, begin, thread, seen, loaded, out);
      default: return pass<8, 2>(first, begin, thread, seen, loaded, out);
    }
  }

  /// The largest logit of every query head: kTeam numbers of each, then one.
  KVB_HD void team_tops(int thread) const {
    for (Index e = thread; e < group * kTeam; e += kThreads) {
      const double* from = thread_most + e / kTeam * kThreads + e % kTeam;
      double x = from[0];
      for (int i = kTeam; i < kThreads; i += kTeam) {
        x = x < from[i] ? from[i] : x;
      }
      team_most[e] = x;
    }
  }

  KVB_HD void tops(int thread) const {
    for (Index g = thread; g < group; g += kThreads) {
      const double* from = team_most + g * kTeam;
      double x = from[0];
      for (int i = 1; i < kTeam; ++i) {
        x = x < from[i] ? from[i] : x;
      }
      most[g] = x;
    }
  }

  KVB_HD void exponentials(int thread, Index seen, double* x) const {
    const Index stride = kThreads % group;
    Index g = thread % group;
    for (Index e = thread; e < seen * group; e += kThreads) {
      x[e] = exp_shared(x[e] - most[g]);
      g += stride;
      g -= g >= group ? group : 0;
    }
  }

  /// A thread per query head. The next numbers are read while the last are added.
  KVB_HD void sums(int thread, Index seen, const double* x) const {
    constexpr int kDeep = 16;
    for (Index g = thread; g < group; g += kThreads) {
      double ahead[kDeep];
      read(x + g, 0, seen, ahead);
      double z = 0.0;
      for (Index i = 0; i < seen; i += kDeep) {
        double now[kDeep];
        KVB_UNROLL
        for (int r = 0; r < kDeep; ++r) {
          now[r] = ahead[r];
        }
        read(x + g, i + kDeep, seen, ahead);
        KVB_UNROLL
        for (int r = 0; r < kDeep; ++r) {
          z += now[r];
        }
      }
      inverse[g] = 1.0 / z;
    }
  }

  /// What every token received, reduced over the group, in float32.
  KVB_HD void add_to(float* scores, Reduce reduce, int thread, Index seen, const double* x) const {
    const double share = reduce == Reduce::mean ? static_cast<double>(group) : 1.0;
    for (Index i = thread; i < seen; i += kThreads) {
      const double* row = x + i * group;
      double received = row[0] * inverse[0];
      for (Index g = 1; g < group; ++g) {
        const double p = row[g] * inverse[g];
        received = reduce != Reduce::max ? received + p : received < p ? p : received;
      }
      scores[i] = static_cast<float>(static_cast<double>(scores[i]) + received / share);
    }
  }

 private:
  template <int H, int Own>
  KVB_HD void pass(Index first, int begin, int thread, Index seen, const double* loaded,
                   double* out) const {
    double x[H];
    KVB_UNROLL
    for (int h = 0; h < H; ++h) {
      x[h] = -std::numeric_limits<double>::infinity();
    }
    const int width = kThreads - begin;
    if (thread >= begin) {
      Index i = thread - begin;
      for (; i + (Own - 1) * width < seen; i += Own * width) {
        multiply_own<H, Own>(first, i, width, loaded, out, x);
      }
      for (; i < seen; i += width) {
        multiply_own<H, 1>(first, i, width, loaded, out, x);
      }
    }
    KVB_UNROLL
    for (int h = 0; h < H; ++h) {
      thread_most[(first + h) * kThreads + thread] = x[h];
    }
  }

  // Tokens i, i + width, ...: Own of them.
  template <int H, int Own>
  KVB_HD void multiply_own(Index first, Index i, int width, const double* loaded, double* out,
                           double (&largest)[H]) const {
    constexpr int kDeep = 8;  // channels read ahead
    constexpr Index kLanes = KeyPanels::kLanes;
    const float* key = panels.at(i);
    const Index apart = width * panels.d;  // `width` is a multiple of kLanes
    double acc[Own][H] = {};
    Index t = 0;
    for (; t + kDeep <= panels.d; t += kDeep) {
      float x[kDeep][Own];
      KVB_UNROLL
      for (int s = 0; s < kDeep; ++s) {
        KVB_UNROLL
        for (int o = 0; o < Own; ++o) {
          x[s][o] = key[o * apart + (t + s) * kLanes];
        }
      }
      KVB_UNROLL
      for (int s = 0; s < kDeep; ++s) {
        add_channel<H, Own>(loaded + (t + s) * H, x[s], acc);
      }
    }
    for (; t < panels.d; ++t) {
      float x[Own];
      KVB_UNROLL
      for (int o = 0; o < Own; ++o) {
        x[o] = key[o * apart + t * kLanes];
      }
      add_channel<H, Own>(loaded + t * H, x, acc);
    }
    KVB_UNROLL
    for (int o = 0; o < Own; ++o) {
      KVB_UNROLL
      for (int h = 0; h < H; ++h) {
        out[(i + o * width) * group + first + h] = acc[o][h];
        largest[h] = largest[h] < acc[o][h] ? acc[o][h] : largest[h];
      }
    }
  }

  template <int H, int Own>
  static KVB_HD void add_channel(const double* loaded, const float (&x)[Own],
                                 double (&acc)[Own][H]) {
    KVB_UNROLL
    for (int o = 0; o < Own; ++o) {
      const auto wide = static_cast<double>(x[o]);
      KVB_UNROLL
      for (int h = 0; h < H; ++h) {
        acc[o][h] = std::fma(loaded[h], wide, acc[o][h]);
      }
    }
  }

  // Zeros beyond the end: they leave a sum as it is.
  template <int kDeep>
  KVB_HD void read(const double* x, Index i, Index seen, double (&to)[kDeep]) const {
    KVB_UNROLL
    for (int r = 0; r < kDeep; ++r) {
      to[r] = i + r < seen ? x[(i + r) * group] : 0.0;
    }
  }
};

}  // namespace kvbench
