// The block kernels of a stream that retains tokens by facility location and attention
// (retained_stream.hpp): norms of all keys, then one block of threads for the whole stream,
// thirteen phases per position. Many streams run side by side, each in a launch of its own.
//
// Members have places 0 .. size-1, the newest the last; the last moves into the hole of one that
// leaves: sums over places are in the CPU's order. Similarities are integers, a member's loss is
// its own less that of its nearest neighbour; which of equally near ones is remembered changes no
// loss. The sum of exponentials and that of scores are one thread's each; meanwhile the other warps
// make the products of the next position with the members held now, the one that is about to leave
// included. Of a member that was some others' nearest the others' are searched anew.
//
// Products and softmax are by column: sinks first, in every sum before the members, then the
// places.
//
// Cost per position, C members and sinks, a group of G, r members searched anew: (G + 1 + r) C d
// FMAs and 8 C d bytes of unit keys (once for queries and newcomer, once for every six searched;
// from the second-level cache while 8 C d of all streams fit), 2 G C exponentials and
// multiplications, two sums of C one after another. At C = 4096, G = 4, d = 128 the bytes are 4
// MiB, at 64 a cycle 66 thousand cycles, twice where members are searched.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/retained_neighbours.hpp"
#include "attention/retained_stream.hpp"
#include "attention/stream_rows.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// A member that may leave; place -1: none.
struct Departure {
  double loss;
  std::int32_t token, place;
};

/// Whether `a` leaves rather than `b`: the smaller loss, of equal ones the earlier token.
KVB_HD inline bool leaves_before(const Departure& a, const Departure& b) {
  if (a.place < 0 || b.place < 0) {
    return a.place >= 0;
  }
  return a.loss < b.loss || (a.loss == b.loss && a.token < b.token);
}

/// One launch block. Needs `units` and `rows` cleared. Step i takes in token sink + i at position
/// sink + i + window.
struct RetainTokens {
  static constexpr int kThreads = kStreamThreads;
  static constexpr int kRows = 6;  // rows of a tile
  static constexpr int kOwn = 4;   // columns of a thread
  struct Shared {
    std::int64_t nearest[kThreads];
    std::int64_t near_finalists[kStreamFinalists];
    Departure best[kThreads];
    Departure finalists[kStreamFinalists];
    double total;               // sum of the scores
    std::int64_t nonzero_keys;  // of the members
    std::int32_t leaves;        // place
    int orphans;                // members whose nearest neighbour left
  };

  RetentionRules rules;    // 1 <= kept <= n; sink + window <= n
  Index sinks;             // that have columns: none where lambda is 1
  Index steps, d, stride;  // stride: columns, sinks and whole tiles of places
  double scale;
  const float* keys;               // [n, d]
  const double* key_norms;         // [n]
  const float* const* query_rows;  // [softmax.group] of [n, d]
  double* units;                   // [d, stride] unit keys of sinks and members
  PackedRows<kRows> rows;          // of the next step: the queries, then the newcomer's unit key
  double* products;                // [2, softmax.group + 1, stride]: logits, then cosines
  double* newest;                  // [softmax.group] the newcomer's own logits
  SoftmaxRows softmax;             // of no rows where lambda is 1; sums are kept as inverses
  double* norms;                   // [stride] by column
  // By place, [stride]:
  float* scores;
  std::int32_t* tokens;
  std::int64_t* neighbours;  // Nearest
  std::int64_t* before;      // `neighbours` before the newcomer
  std::int32_t* orphans;     // places, in no order
  std::int32_t* log;         // [steps] the token that leaves, or -1

  enum Phase {
    kAdmit,    // the newcomer joins; neighbours that it is nearer to
    kParts,    // largest logits and its own nearest, level by level
    kFew,      //
    kLargest,  //
    kExp,      // exponentials; the next step's queries and unit key are packed
    kSum,      // their sums; half of the next step's products
    kWeigh,    // scores
    kTotal,    // their sum; the other half
    kLosses,   // losses, and each thread's own least
    kSearch,   // the least of all
    kChoose,   //
    kRemove,   // the newest moves into the hole
    kRepair,   // neighbours of those that lost theirs
    kPhases
  };

  // Step -1 makes nothing but the products of step 0.
  KVB_HD int phases(Index) const { return static_cast<int>((steps + 1) * kPhases); }

  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    const Index i = phase / kPhases - 1;
    const int part = phase % kPhases;
    if (part == kExp && i + 1 < steps) {
      pack(i + 1, thread);
    }
    if (part == kSum || part == kTotal) {
      sum_and_multiply(i, part, thread, shared);
    }
    if (i < 0) {
      if (part == kAdmit) {
        take_in_sinks(thread, shared);
      }
      return;
    }
    if (part >= kLosses && !evicts(i)) {
      if (part == kChoose && thread == 0) {
        log[i] = -1;
      }
      return;
    }
    switch (part) {
      case kAdmit: admit(i, thread, shared); break;
      case kParts:
        softmax.find_parts(row(i), stride, sinks + size(i), thread);
        find_nearest_few(thread, shared);
        break;
      case kFew:
        softmax.find_few(thread);
        if (thread == 0) {
          std::int64_t nearest = 0;
          for (const std::int64_t x : shared.near_finalists) {
            nearest = x > nearest ? x : nearest;
          }
          neighbours[place(i)] = nearest;
        }
        break;
      case kLargest: softmax.find_largest(thread); break;
      case kExp: softmax.make_exponentials(row(i), stride, sinks + size(i), thread); break;
      case kWeigh: weigh(i, thread); break;
      case kLosses: find_losses(i, thread, shared); break;
      case kSearch:
        if (thread < kStreamFinalists) {
          Departure best = shared.best[thread];
          for (int k = thread + kStreamFinalists; k < kThreads; k += kStreamFinalists) {
            best = leaves_before(shared.best[k], best) ? shared.best[k] : best;
          }
          shared.finalists[thread] = best;
        }
        break;
      case kChoose:
        if (thread == 0) {
          choose(i, shared);
        }
        break;
      case kRemove: remove(i, thread, shared); break;
      case kRepair: search().find(orphans, shared.orphans, neighbours, place(i), thread); break;
      default: break;
    }
  }

 private:
  KVB_HD bool evicts(Index i) const { return i >= rules.kept; }
  /// The newcomer's place, and the members with it.
  KVB_HD Index place(Index i) const { return evicts(i) ? rules.kept : i; }
  KVB_HD Index size(Index i) const { return place(i) + 1; }
  KVB_HD bool tracks() const { return rules.lambda > 0.0; }
  KVB_HD double* row(Index i) const { return products + (i & 1) * (softmax.group + 1) * stride; }
  /// By place.
  KVB_HD double* logits(Index i) const { return row(i) + sinks; }
  KVB_HD double* cosines(Index i) const { return logits(i) + softmax.group * stride; }
  KVB_HD double* place_units() const { return units + sinks; }
  KVB_HD double* place_norms() const { return norms + sinks; }

  KVB_HD NeighbourSearch search() const {
    return {place_units(), place_norms(), d, stride, rules.kind};
  }

  KVB_HD double unit(Index token, Index t) const {
    const double norm = key_norms[token];
    return norm > 0.0 ? static_cast<double>(keys[token * d + t]) / norm : 0.0;
  }

  KVB_HD void take_in_sinks(int thread, Shared& shared) const {
    for (Index e = thread; e < sinks * d; e += kThreads) {
      units[e / sinks * stride + e % sinks] = unit(e % sinks, e / sinks);
    }
    for (Index s = thread; s < sinks; s += kThreads) {
      norms[s] = key_norms[s];
    }
    if (thread == 0) {
      shared.nonzero_keys = 0;
    }
  }

  KVB_HD void admit(Index i, int thread, Shared& shared) const {
    const Index last = place(i);
    const double norm = key_norms[rules.sink + i];
    for (Index t = thread; t < d; t += kThreads) {
      place_units()[t * stride + last] = rows.at(softmax.group, t);
    }
    for (Index h = thread; h < softmax.group; h += kThreads) {
      logits(i)[h * stride + last] = newest[h];
    }
    if (thread == 0) {
      place_norms()[last] = norm;
      tokens[last] = static_cast<std::int32_t>(rules.sink + i);
      scores[last] = 0.0F;
      shared.nonzero_keys += norm > 0.0 ? 1 : 0;
    }
    std::int64_t own = 0;
    for (Index p = thread; tracks() && p < last; p += kThreads) {
      const std::int32_t x = search().similarity(cosines(i)[p], place_norms()[p], norm);
      const std::int64_t theirs = Nearest::make(x, last);
      const std::int64_t mine = Nearest::make(x, p);
      before[p] = neighbours[p];
      neighbours[p] = theirs > before[p] ? theirs : before[p];
      own = mine > own ? mine : own;
    }
    shared.nearest[thread] = own;
  }

  KVB_HD static void find_nearest_few(int thread, Shared& shared) {
    if (thread < kStreamFinalists) {
      std::int64_t nearest = 0;
      for (int k = thread; k < kThreads; k += kStreamFinalists) {
        nearest = shared.nearest[k] > nearest ? shared.nearest[k] : nearest;
      }
      shared.near_finalists[thread] = nearest;
    }
  }

  KVB_HD void pack(Index i, int thread) const {
    const Index token = rules.sink + i;
    for (Index h = 0; h < softmax.group; ++h) {
      for (Index t = thread; t < d; t += kThreads) {
        rows.at(h, t) = static_cast<double>(query_rows[h][(token + rules.window) * d + t]);
      }
    }
    for (Index t = thread; t < d; t += kThreads) {
      rows.at(softmax.group, t) = unit(token, t);
    }
  }

  // Sums in the first warps, half of the products in each of both phases.
  KVB_HD void sum_and_multiply(Index i, int part, int thread, Shared& shared) const {
    const int lane = thread % kStreamWarp;
    int warp = thread / kStreamWarp;
    int warps = kStreamWarps;
    const bool total = evicts(i) && rules.lambda > 0.0 && rules.lambda < 1.0;
    const int summing = i < 0 ? 0 : part == kSum ? softmax.sum_warps() : total ? 1 : 0;
    if (warp < summing) {
      if (part == kSum) {
        softmax.make_sums(
            row(i), stride, sinks + size(i), [](Index c) { return c; },
            [](double x) { return 1.0 / x; }, thread);
      } else if (thread == 0) {
        const float* score = scores;
        shared.total = sum_in_order(
            size(i), [](Index p) { return p; },
            [=](Index p) { return static_cast<double>(score[p]); });
      }
      return;
    }
    warp -= summing;
    warps -= summing;
    if (i + 1 >= steps) {
      return;
    }
    const Index columns = sinks + (i < 0 ? 0 : size(i));
    const Index tiles = rows.tiles();
    const Index items = (columns + kStreamColumns - 1) / kStreamColumns * tiles;
    const Index half = items / 2;
    const Index end = part == kSum ? half : items;
    for (Index item = (part == kSum ? 0 : half) + warp; item < end; item += warps) {
      multiply_held(i + 1, item % tiles, item / tiles * kStreamColumns, columns, lane);
    }
    // The last warp has the least of these; it multiplies the newcomer's own key.
    if (part == kSum && warp == warps - 1) {
      multiply_newest(i + 1, lane);
    }
  }
  KVB_HD void multiply_newest(Index i, int lane) const {
    for (Index h = lane; h < softmax.group; h += kStreamWarp) {
      double acc = 0.0;
      for (Index t = 0; t < d; ++t) {
        acc = std::fma(rows.at(h, t), rows.at(softmax.group, t), acc);
      }
      newest[h] = scale * key_norms[rules.sink + i] * acc;
    }
  }
  KVB_HD void multiply_held(Index i, Index tile, Index first, Index end, int lane) const {
    double acc[kRows][kOwn];
    multiply_columns<kRows, kOwn>(rows.tile(tile), units, d, stride, first, lane, acc);
    double* out = row(i);
    KVB_UNROLL
    for (int o = 0; o < kOwn; ++o) {
      const Index c = first + lane + o * kStreamWarp;
      if (c < end) {
        const double factor = scale * norms[c];
        KVB_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const Index h = tile * kRows + r;
          if (h <= softmax.group) {
            out[h * stride + c] = h < softmax.group ? factor * acc[r][o] : acc[r][o];
          }
        }
      }
    }
  }

  KVB_HD void weigh(Index i, int thread) const {
    const double part =
        rules.reduce == Reduce::mean ? 1.0 / static_cast<double>(softmax.group) : 1.0;
    for (Index p = thread; softmax.group > 0 && p < size(i); p += kThreads) {
      double weight = 0.0;
      for (Index h = 0; h < softmax.group; ++h) {
        weight = add_weight(rules.reduce, weight, logits(i)[h * stride + p] * softmax.sums[h]);
      }
      scores[p] = static_cast<float>(static_cast<double>(scores[p]) + weight * part);
    }
  }

  // Each thread's own least loss.
  KVB_HD void find_losses(Index i, int thread, Shared& shared) const {
    const double all_keys =
        tracks() ? static_cast<double>(shared.nonzero_keys * std::int64_t{kSimilarityOne}) : 0.0;
    const double x = tracks() && rules.lambda < 1.0 ? shared.total : 0.0;
    const double y = log1p_shared(x);
    const double key_weight = all_keys > 0.0 ? rules.lambda / all_keys : 0.0;
    const double score_weight = y > 0.0 ? (1.0 - rules.lambda) / y : 0.0;
    Departure best{0.0, -1, -1};
    for (Index p = thread; p < size(i); p += kThreads) {
      auto loss = static_cast<double>(scores[p]);
      if (key_weight > 0.0) {
        const std::int64_t self = place_norms()[p] > 0.0 ? kSimilarityOne : 0;
        const double keys_lost =
            key_weight * static_cast<double>(self - Nearest::similarity(neighbours[p]));
        loss = score_weight > 0.0 ? keys_lost + score_weight * -log1p_shared(-loss / (1.0 + x))
                                  : keys_lost;
      }
      const Departure own{loss, tokens[p], static_cast<std::int32_t>(p)};
      best = leaves_before(own, best) ? own : best;
    }
    shared.best[thread] = best;
  }

  KVB_HD void choose(Index i, Shared& shared) const {
    Departure best = shared.finalists[0];
    for (int k = 1; k < kStreamFinalists; ++k) {
      best = leaves_before(shared.finalists[k], best) ? shared.finalists[k] : best;
    }
    log[i] = best.token;
    shared.leaves = best.place;
    shared.nonzero_keys -= place_norms()[best.place] > 0.0 ? 1 : 0;
    shared.orphans = 0;
  }

  // The newest moves into the hole. Nothing is written at its old place, where others read.
  KVB_HD void remove(Index i, int thread, Shared& shared) const {
    const Index hole = shared.leaves;
    const Index last = place(i);
    if (hole != last) {
      for (Index t = thread; t < d; t += kThreads) {
        place_units()[t * stride + hole] = place_units()[t * stride + last];
      }
      for (Index h = thread; h <= softmax.group; h += kThreads) {
        logits(i + 1)[h * stride + hole] = logits(i + 1)[h * stride + last];
      }
      if (thread == 0) {
        place_norms()[hole] = place_norms()[last];
        tokens[hole] = tokens[last];
        scores[hole] = scores[last];
      }
    }
    for (Index p = thread; tracks() && p < last; p += kThreads) {
      if (hole == last) {
        neighbours[p] = before[p];
        continue;
      }
      std::int64_t own = neighbours[p == hole ? last : p];
      const std::int32_t theirs = Nearest::place(own);
      if (theirs == hole) {
        orphans[atomic_claim(&shared.orphans)] = static_cast<std::int32_t>(p);
        own = 0;
      } else if (theirs == last) {
        own = Nearest::make(Nearest::similarity(own), hole);
      }
      neighbours[p] = own;
    }
  }
};

}  // namespace kvbench
