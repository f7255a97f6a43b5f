// Block kernels of top_k.hpp: a radix select on integer images of the scores, from the highest byte
// down, then the chosen places in their order.
//
//   CountDigits  how many of the scores still in question have each value of the next byte
//   PickDigit    the value of that byte at the cut; what is above is chosen, what is below is not
//   CountTaken   scores above and at the cut, per tile
//   WriteTaken   their places
//
// All sums are of integers, so no order matters but that of the places.
#pragma once

#include <bit>
#include <cstdint>

#include "core/machine.hpp"

namespace kvbench {

/// Integers that compare as the scores do; -0 and 0 have the same.
KVB_HD inline std::uint64_t ordered_bits(double score) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63U;
  const auto bits = std::bit_cast<std::uint64_t>(score == 0.0 ? 0.0 : score);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

/// The cut after some bytes: of the scores whose highest bytes are `prefix`, `wanted` are among the
/// chosen; those with a higher prefix all are.
struct TopCut {
  std::uint64_t prefix;
  std::int64_t wanted;
};

struct TopDigits {
  static constexpr int kCount = 8;     ///< bytes of a score
  static constexpr int kValues = 256;  ///< of a byte
};

/// Adds to counts[pass], which starts at zero.
struct CountDigits {
  static constexpr int kThreads = 256;
  static constexpr int kOwn = 16;  // scores of a thread
  static constexpr int kTile = kThreads * kOwn;
  struct Shared {
    std::int64_t counts[TopDigits::kValues];
  };

  const double* scores;  // [count]
  Index count;
  const TopCut* cuts;    // [kCount + 1]; cuts[pass] is read
  std::int64_t* counts;  // [kCount, kValues]
  int pass;              // bytes that are settled

  KVB_HD Index blocks() const { return (count + kTile - 1) / kTile; }
  KVB_HD int phases(Index) const { return 3; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    static_assert(kThreads == TopDigits::kValues);
    if (phase == 0) {
      shared.counts[thread] = 0;
    } else if (phase == 1) {
      count_own(block * kTile + thread, shared);
    } else if (shared.counts[thread] > 0) {
      atomic_add(counts + pass * TopDigits::kValues + thread, shared.counts[thread]);
    }
  }

 private:
  // Scores are often alike in their high bytes: a thread adds up equal digits before it adds them
  // to the block's, on which all threads would wait.
  KVB_HD void count_own(Index first, Shared& shared) const {
    const std::uint64_t prefix = cuts[pass].prefix;
    const int low = 64 - 8 * pass;  // bits that are not settled
    int digit = 0;
    std::int64_t run = 0;
    for (Index i = first; i < count && i < first + kTile; i += kThreads) {
      const std::uint64_t bits = ordered_bits(scores[i]);
      if (pass > 0 && bits >> low != prefix) {
        continue;
      }
      const int own = static_cast<int>(bits >> (low - 8) & 0xffU);
      if (own != digit && run > 0) {
        atomic_add(&shared.counts[digit], run);
        run = 0;
      }
      digit = own;
      ++run;
    }
    if (run > 0) {
      atomic_add(&shared.counts[digit], run);
    }
  }
};

/// One launch block: cuts[pass + 1] from cuts[pass] and counts[pass].
struct PickDigit {
  static constexpr int kThreads = TopDigits::kValues;
  struct Shared {
    std::int64_t counts[TopDigits::kValues];
  };

  const std::int64_t* counts;  // [kCount, kValues]
  TopCut* cuts;                // [kCount + 1]
  int pass;

  KVB_HD int phases(Index) const { return 2; }

  KVB_HD void run(int phase, Index, int thread, Shared& shared) const {
    if (phase == 0) {
      shared.counts[thread] = counts[pass * TopDigits::kValues + thread];
      return;
    }
    std::int64_t above = 0;
    for (int value = thread + 1; value < TopDigits::kValues; ++value) {
      above += shared.counts[value];
    }
    const TopCut cut = cuts[pass];
    // True of one thread: 0 < wanted <= the scores in question.
    if (above < cut.wanted && cut.wanted <= above + shared.counts[thread]) {
      cuts[pass + 1] = {cut.prefix << 8U | static_cast<std::uint64_t>(thread), cut.wanted - above};
    }
  }
};

/// Scores above and at the cut: of a thread, a tile or all tiles before one.
struct TakenCount {
  std::int64_t above;
  std::int64_t equal;
};

/// What CountTaken and WriteTaken share. A tile is a block's, a thread's scores are neighbours.
struct TopTiles {
  static constexpr int kThreads = 256;
  static constexpr int kOwn = 8;
  static constexpr int kTile = kThreads * kOwn;

  const double* scores;  // [count]
  Index count;
  const TopCut* cut;  // all bytes settled

  KVB_HD Index blocks() const { return (count + kTile - 1) / kTile; }

  KVB_HD TakenCount count_own(Index block, int thread) const {
    const Index first = block * kTile + thread * kOwn;
    TakenCount out{0, 0};
    for (Index i = first; i < count && i < first + kOwn; ++i) {
      const std::uint64_t bits = ordered_bits(scores[i]);
      out.above += bits > cut->prefix ? 1 : 0;
      out.equal += bits == cut->prefix ? 1 : 0;
    }
    return out;
  }
};

struct CountTaken {
  static constexpr int kThreads = TopTiles::kThreads;
  static constexpr int kParts = 16;
  struct Shared {
    TakenCount own[kThreads];
    TakenCount parts[kParts];
  };

  TopTiles tiles;
  TakenCount* taken;  // [tiles.blocks()]

  KVB_HD int phases(Index) const { return 3; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    if (phase == 0) {
      shared.own[thread] = tiles.count_own(block, thread);
    } else if (phase == 1) {
      if (thread < kParts) {
        shared.parts[thread] = sum(shared.own + thread, kThreads, kParts);
      }
    } else if (thread == 0) {
      taken[block] = sum(shared.parts, kParts, 1);
    }
  }

 private:
  KVB_HD static TakenCount sum(const TakenCount* of, int end, int step) {
    TakenCount out{0, 0};
    for (int i = 0; i < end; i += step) {
      out.above += of[i].above;
      out.equal += of[i].equal;
    }
    return out;
  }
};

/// Every block adds up the tiles before its own by itself: a tile is 2048 scores, so that even for
/// a million tokens there are some 500 numbers to add.
struct WriteTaken {
  static constexpr int kThreads = TopTiles::kThreads;
  struct Shared {
    TakenCount before[kThreads];  // of tiles
    TakenCount own[kThreads];
  };

  TopTiles tiles;
  const TakenCount* taken;  // [tiles.blocks()]
  Index* places;            // [number of chosen]

  KVB_HD int phases(Index) const { return 2; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    if (phase == 0) {
      TakenCount before{0, 0};
      for (Index b = thread; b < block; b += kThreads) {
        before.above += taken[b].above;
        before.equal += taken[b].equal;
      }
      shared.before[thread] = before;
      shared.own[thread] = tiles.count_own(block, thread);
      return;
    }
    std::int64_t above = 0;
    std::int64_t equal = 0;
    for (int t = 0; t < kThreads; ++t) {
      above += shared.before[t].above + (t < thread ? shared.own[t].above : 0);
      equal += shared.before[t].equal + (t < thread ? shared.own[t].equal : 0);
    }
    const TopCut cut = *tiles.cut;
    const Index first = block * TopTiles::kTile + thread * TopTiles::kOwn;
    for (Index i = first; i < tiles.count && i < first + TopTiles::kOwn; ++i) {
      const std::uint64_t bits = ordered_bits(tiles.scores[i]);
      // Of equal scores the first `wanted` are chosen.
      if (bits > cut.prefix || (bits == cut.prefix && equal < cut.wanted)) {
        places[above + (equal < cut.wanted ? equal : cut.wanted)] = i;
      }
      above += bits > cut.prefix ? 1 : 0;
      equal += bits == cut.prefix ? 1 : 0;
    }
  }
};

}  // namespace kvbench
