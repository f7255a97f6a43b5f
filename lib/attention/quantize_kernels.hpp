// Block kernels of quantize.hpp: groups of tokens or of channels, coded and read back at once. A
// minimum has no order, and the rest is the CPU's own arithmetic: the rows are its to the bit.
//
//   TokenExtremes      minimum and maximum of each channel over pieces of a group of tokens
//   TokenScales        zero and scale of each group and channel
//   ReadAlongTokens    the rows
//   ReadAlongChannels  the rows where groups are of channels: extremes, scale and codes in one
#pragma once

#include "attention/quantize.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Zero and scale as they are read.
struct ReadScale {
  float zero;
  float scale;
};

KVB_HD inline ReadScale read_scale(float low, float high, double top) {
  const GroupScale halves = group_scale(low, high, top);
  return {half_to_float(halves.zero), half_to_float(halves.scale)};
}

KVB_HD inline float coded(float x, const ReadScale& s, double top) {
  return read_code(nearest_code(x, s.zero, s.scale, top), s.zero, s.scale);
}

/// Whole groups of tokens (the last may be shorter), each in pieces that are a thread's work. Rows
/// are read along their length, so a thread is one channel's.
struct TokenGroups {
  static constexpr Index kPiece = 64;  ///< tokens of a piece, at most

  const float* rows;    // [., cols]
  const Index* tokens;  // [count]
  Index count;
  Index cols;
  Index group;  // <= count

  KVB_HD Index pieces_of_group() const { return (group + kPiece - 1) / kPiece; }
  KVB_HD Index groups() const { return (count + group - 1) / group; }
  /// Of the last group too as many as of the others; those behind its end are empty.
  KVB_HD Index pieces() const { return groups() * pieces_of_group(); }
  KVB_HD Index begin(Index piece) const {
    const Index first = piece / pieces_of_group() * group + piece % pieces_of_group() * kPiece;
    return first < count ? first : count;
  }
  KVB_HD Index end(Index piece) const {
    const Index group_end = (piece / pieces_of_group() + 1) * group;
    const Index last = begin(piece) + kPiece;
    const Index stop = last < group_end ? last : group_end;
    return stop < count ? stop : count;
  }
  KVB_HD float at(Index i, Index c) const { return rows[tokens[i] * cols + c]; }
};

/// A thread per piece and channel. What it writes for an empty piece is not read.
struct TokenExtremes {
  static constexpr int kThreads = 256;
  struct Shared {};

  TokenGroups from;
  float* low;   // [pieces, cols]
  float* high;  // the same

  KVB_HD Index blocks() const { return (from.pieces() * from.cols + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    const Index piece = at / from.cols;
    if (piece >= from.pieces()) {
      return;
    }
    const Index c = at % from.cols;
    const Index end = from.end(piece);
    Index i = from.begin(piece);
    if (i >= end) {
      return;
    }
    float least = from.at(i, c);
    float most = least;
    for (++i; i < end; ++i) {
      const float x = from.at(i, c);
      least = x < least ? x : least;
      most = x > most ? x : most;
    }
    low[at] = least;
    high[at] = most;
  }
};

/// A thread per group and channel.
struct TokenScales {
  static constexpr int kThreads = 256;
  struct Shared {};

  TokenGroups from;
  const float* low;   // [pieces, cols]
  const float* high;  // the same
  double top;         // largest code
  ReadScale* scales;  // [groups, cols]

  KVB_HD Index blocks() const { return (from.groups() * from.cols + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    const Index g = at / from.cols;
    if (g >= from.groups()) {
      return;
    }
    const Index c = at % from.cols;
    const Index pieces = from.pieces_of_group();
    float least = low[g * pieces * from.cols + c];
    float most = high[g * pieces * from.cols + c];
    for (Index p = g * pieces + 1; p < (g + 1) * pieces && from.begin(p) < from.count; ++p) {
      const float x = low[p * from.cols + c];
      const float y = high[p * from.cols + c];
      least = x < least ? x : least;
      most = y > most ? y : most;
    }
    scales[at] = read_scale(least, most, top);
  }
};

/// out[i, c] = number c of token first + i, coded and read back. A thread per number.
struct ReadAlongTokens {
  static constexpr int kThreads = 256;
  struct Shared {};

  TokenGroups from;
  const ReadScale* scales;  // [groups, cols]
  double top;
  Index first;
  Index rows;
  float* out;  // [rows, cols]

  KVB_HD Index blocks() const { return (rows * from.cols + kThreads - 1) / kThreads; }
  KVB_HD int phases(Index) const { return 1; }

  KVB_HD void run(int, Index block, int thread, Shared&) const {
    const Index at = block * kThreads + thread;
    const Index i = first + at / from.cols;
    if (i >= first + rows) {
      return;
    }
    const Index c = at % from.cols;
    out[at] = coded(from.at(i, c), scales[i / from.group * from.cols + c], top);
  }
};

/// A warp per token and group of channels, a lane for every 32nd of them.
struct ReadAlongChannels {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 32;
  static constexpr int kWarps = kThreads / kLanes;
  struct Shared {
    float low[kWarps][kLanes];
    float high[kWarps][kLanes];
  };

  const float* from;    // [., cols]
  const Index* tokens;  // [rows]
  Index rows;
  Index cols;
  Index group;  // <= cols
  double top;
  float* out;  // [rows, cols]

  KVB_HD Index groups() const { return (cols + group - 1) / group; }
  KVB_HD Index blocks() const { return (rows * groups() + kWarps - 1) / kWarps; }
  KVB_HD int phases(Index) const { return 2; }

  KVB_HD void run(int phase, Index block, int thread, Shared& shared) const {
    const int warp = thread / kLanes;
    const int lane = thread % kLanes;
    const Index row = (block * kWarps + warp) / groups();
    if (row >= rows) {
      return;
    }
    const Index begin = (block * kWarps + warp) % groups() * group;
    const Index length = group < cols - begin ? group : cols - begin;
    const float* x = from + tokens[row] * cols + begin;
    if (phase == 0) {
      // A lane that owns no channel repeats the first, which changes no extreme.
      float least = x[0];
      float most = x[0];
      for (Index c = lane; c < length; c += kLanes) {
        least = x[c] < least ? x[c] : least;
        most = x[c] > most ? x[c] : most;
      }
      shared.low[warp][lane] = least;
      shared.high[warp][lane] = most;
      return;
    }
    float least = shared.low[warp][0];
    float most = shared.high[warp][0];
    for (int l = 1; l < kLanes; ++l) {
      least = shared.low[warp][l] < least ? shared.low[warp][l] : least;
      most = shared.high[warp][l] > most ? shared.high[warp][l] : most;
    }
    const ReadScale s = read_scale(least, most, top);
    for (Index c = lane; c < length; c += kLanes) {
      out[row * cols + begin + c] = coded(x[c], s, top);
    }
  }
};

}  // namespace kvbench
