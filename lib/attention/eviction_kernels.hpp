// The block kernel of a stream that evicts by attention (eviction_stream.hpp): one block of threads
// for the whole stream, eleven phases per position. Many streams run side by side, each in a launch
// of its own.
//
// Every token held has a slot, a column of the transposed keys that its successor takes over; a
// list in ascending order says which. Products, exponentials, the sum over tokens in ascending
// order and the float32 scores are the CPU's to the bit (algorithms/evicting_cache.hpp). That sum
// is one thread's; meanwhile the other warps make the products of the next position with the tokens
// held now, the one that is about to go included.
//
// Cost per position, C tokens held, a group of G: G C d FMAs and 4 C d bytes of keys (from the
// second-level cache while 4 C d of all streams fit), 2 G C exponentials and divisions, C additions
// one after another. At C = 4096, G = 4, d = 128 these are 2.1 million FMAs, at 64 a cycle 33
// thousand cycles, 2 MiB, at 64 bytes a cycle as many, and additions that take about the same.
#pragma once

#include <cstdint>

#include "attention/eviction_stream.hpp"
#include "attention/stream_rows.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// A token held and where its key lies.
struct HeldSlot {
  std::int32_t token, slot;
};

/// A token that may go; token -1: none.
struct EvictionCandidate {
  double score;
  HeldSlot held;
};

/// Whether `a` goes rather than `b`: the lower score, of equal ones the later token.
KVB_HD inline bool goes_before(const EvictionCandidate& a, const EvictionCandidate& b) {
  if (a.held.token < 0 || b.held.token < 0) {
    return a.held.token >= 0;
  }
  return a.score < b.score || (a.score == b.score && a.held.token > b.held.token);
}

/// One launch block. Needs `columns` and `queries` cleared.
struct EvictTokens {
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kRows = 4;  // query heads of a tile
  static constexpr int kOwn = 4;   // columns of a thread
  struct Shared {
    EvictionCandidate best[kThreads];
    EvictionCandidate finalists[kStreamFinalists];
    EvictionCandidate evicted;
    std::int32_t place;  // of the evicted token in the list
  };

  EvictionRules rules;  // kept, window, sink <= n
  Index n, d, stride;   // stride: slots, a multiple of kStreamColumns
  double scale;
  const float* keys;               // [n, d]
  const float* const* query_rows;  // [group] of [n, d]
  float* columns;                  // [d, stride] keys of the tokens held
  PackedRows<kRows> queries;       // of the next position
  double* logits;                  // [2, group, stride]
  double* newest;                  // [group] the next token's own logits
  SoftmaxRows softmax;
  float* scores;         // [stride]
  std::int32_t* tokens;  // [stride]
  HeldSlot* held;        // [2, stride]
  Eviction* log;         // [n]

  enum Phase {
    kAdmit,    // the token of this position joins those held
    kParts,    // largest logits, level by level
    kFew,      //
    kLargest,  //
    kExp,      // exponentials; the next position's queries are packed
    kSum,      // their sums; the next position's logits
    kWeigh,    // scores, and each thread's own lightest
    kSearch,   // the lightest of all
    kChoose,   //
    kRemove,   // out of the list, into its other copy
    kAfter,    // scores behind it
    kPhases
  };

  // Step -1 makes nothing but the products of step 0.
  KVB_HD int phases(Index) const { return static_cast<int>((n + 1) * kPhases); }

  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    const Index j = phase / kPhases - 1;
    const int part = phase % kPhases;
    if (part == kExp && j + 1 < n) {
      pack_queries(j + 1, thread);
    }
    if (part == kSum) {
      sum_and_multiply(j, thread);
    }
    if (j < 0 || (part > kWeigh && !evicts(j) && part != kChoose)) {
      return;
    }
    switch (part) {
      case kAdmit: admit(j, thread, shared); break;
      case kParts: softmax.find_parts(row(j), stride, size(j), thread); break;
      case kFew: softmax.find_few(thread); break;
      case kLargest: softmax.find_largest(thread); break;
      case kExp: softmax.make_exponentials(row(j), stride, size(j), thread); break;
      case kWeigh: weigh(j, thread, shared); break;
      case kSearch:
        if (thread < kStreamFinalists) {
          EvictionCandidate best = shared.best[thread];
          for (int i = thread + kStreamFinalists; i < kThreads; i += kStreamFinalists) {
            best = goes_before(shared.best[i], best) ? shared.best[i] : best;
          }
          shared.finalists[thread] = best;
        }
        break;
      case kChoose:
        if (thread == 0) {
          choose(j, shared);
        }
        break;
      case kRemove: remove(j, thread, shared); break;
      case kAfter:
        if (thread == 0 && rules.after > 0) {
          look_behind(j, shared);
        }
        break;
      default: break;
    }
  }

 private:
  /// Tokens evicted before position j: how many leave the window says when.
  KVB_HD Index gone(Index j) const {
    const Index over = j - rules.window - rules.sink - rules.kept;
    return over > 0 ? over : 0;
  }
  /// Tokens that position j attends to.
  KVB_HD Index size(Index j) const { return j + 1 - gone(j); }
  KVB_HD bool evicts(Index j) const { return gone(j + 1) > 0; }
  KVB_HD double* row(Index j) const { return logits + (j & 1) * softmax.group * stride; }
  KVB_HD HeldSlot* list(Index j) const { return held + (gone(j) & 1) * stride; }

  KVB_HD void admit(Index j, int thread, Shared& shared) const {
    const auto slot = gone(j) > 0 ? shared.evicted.held.slot : static_cast<std::int32_t>(j);
    for (Index t = thread; t < d; t += kThreads) {
      columns[t * stride + slot] = keys[j * d + t];
    }
    for (Index h = thread; h < softmax.group; h += kThreads) {
      row(j)[h * stride + slot] = newest[h];
    }
    if (thread == 0) {
      list(j)[size(j) - 1] = {static_cast<std::int32_t>(j), slot};
      tokens[slot] = static_cast<std::int32_t>(j);
      scores[slot] = 0.0F;
    }
  }

  KVB_HD void pack_queries(Index j, int thread) const {
    for (Index h = 0; h < softmax.group; ++h) {
      for (Index t = thread; t < d; t += kThreads) {
        queries.at(h, t) = static_cast<double>(query_rows[h][j * d + t]);
      }
    }
  }

  KVB_HD void sum_and_multiply(Index j, int thread) const {
    const int lane = thread % kStreamWarp;
    int warp = thread / kStreamWarp;
    int warps = kStreamWarps;
    if (j >= 0) {
      if (warp < softmax.sum_warps()) {
        const HeldSlot* order = list(j);
        softmax.make_sums(
            row(j), stride, size(j), [=](Index i) { return Index{order[i].slot}; },
            [](double x) { return x; }, thread);
        return;
      }
      warp -= softmax.sum_warps();
      warps -= softmax.sum_warps();
    }
    if (j + 1 >= n) {
      return;
    }
    const Index held_now = j < 0 ? 0 : size(j);
    const Index tiles = queries.tiles();
    const Index items = (held_now + kStreamColumns - 1) / kStreamColumns * tiles;
    // One warp more multiplies the next token's own key.
    for (Index item = warp; item <= items; item += warps) {
      if (item == items) {
        multiply_newest(j + 1, lane);
      } else {
        multiply_held(j + 1, item % tiles, item / tiles * kStreamColumns, held_now, lane);
      }
    }
  }
  KVB_HD void multiply_newest(Index j, int lane) const {
    for (Index h = lane; h < softmax.group; h += kStreamWarp) {
      double acc = 0.0;
      for (Index t = 0; t < d; ++t) {
        acc = std::fma(queries.at(h, t), static_cast<double>(keys[j * d + t]), acc);
      }
      newest[h] = acc * scale;
    }
  }
  KVB_HD void multiply_held(Index j, Index tile, Index first, Index end, int lane) const {
    double acc[kRows][kOwn];
    multiply_columns<kRows, kOwn>(queries.tile(tile), columns, d, stride, first, lane, acc);
    double* out = row(j);
    KVB_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Index h = tile * kRows + r;
      KVB_UNROLL
      for (int o = 0; o < kOwn; ++o) {
        const Index s = first + lane + o * kStreamWarp;
        if (h < softmax.group && s < end) {
          out[h * stride + s] = acc[r][o] * scale;
        }
      }
    }
  }

  // Scores, and each thread's own lightest of the tokens that may go.
  KVB_HD void weigh(Index j, int thread, Shared& shared) const {
    const Index candidates = rules.kept + 1 - rules.protected_recent;
    const std::int32_t last = evicts(j) ? list(j)[rules.sink + candidates - 1].token : -1;
    const double heads = rules.reduce == Reduce::mean ? static_cast<double>(softmax.group) : 1.0;
    EvictionCandidate best{0.0, {-1, -1}};
    for (Index s = thread; s < size(j); s += kThreads) {
      double weight = 0.0;
      for (Index h = 0; h < softmax.group; ++h) {
        weight = add_weight(rules.reduce, weight, row(j)[h * stride + s] / softmax.sums[h]);
      }
      weight /= heads;
      if (rules.accumulate) {
        scores[s] = static_cast<float>(static_cast<double>(scores[s]) + weight);
        weight = static_cast<double>(scores[s]);
      }
      if (tokens[s] <= last && tokens[s] >= rules.sink) {
        const EvictionCandidate own{weight, {tokens[s], static_cast<std::int32_t>(s)}};
        best = goes_before(own, best) ? own : best;
      }
    }
    shared.best[thread] = best;
  }

  KVB_HD void choose(Index j, Shared& shared) const {
    log[j] = {-1, 0.0, 0.0, 0};
    if (!evicts(j)) {
      return;
    }
    EvictionCandidate best = shared.finalists[0];
    for (int i = 1; i < kStreamFinalists; ++i) {
      best = goes_before(shared.finalists[i], best) ? shared.finalists[i] : best;
    }
    log[j].token = best.held.token;
    log[j].score = best.score;
    shared.evicted = best;
  }

  KVB_HD void remove(Index j, int thread, Shared& shared) const {
    const HeldSlot* from = list(j);
    HeldSlot* to = list(j + 1);
    const Index count = size(j);
    const std::int32_t token = shared.evicted.held.token;
    for (Index i = thread; i < count; i += kThreads) {
      const HeldSlot own = from[i];
      if (own.token == token) {
        shared.place = static_cast<std::int32_t>(i);
      }
      if (i + 1 < count) {
        to[i] = own.token < token ? own : from[i + 1];
      }
    }
  }

  KVB_HD void look_behind(Index j, const Shared& shared) const {
    const Index behind = rules.sink + rules.kept - shared.place;
    const Index count = behind < rules.after ? behind : rules.after;
    const HeldSlot* order = list(j + 1) + shared.place;
    const float* score = scores;
    log[j].after_sum = sum_in_order(
        count, [=](Index i) { return Index{order[i].slot}; },
        [=](Index s) { return static_cast<double>(score[s]); });
    log[j].after_count = count;
  }
};

}  // namespace kvbench
