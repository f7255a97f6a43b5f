// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011), from Random123. Streams are pure functions of their purpose: selections do
// not depend on threads, shards, the order of jobs, or the device.
//
// Key (64 bits)   = hash64(seed, prompt, algorithm, purpose)
// Counter (128)   = { block low, block high, layer, kv_head }
// A block gives two 64-bit words; draw i is word i % 2 of block i / 2.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Random access, cheap to copy.
class RngStream {
 public:
  RngStream() = default;
  RngStream(std::uint64_t key, std::uint32_t layer, std::uint32_t kv_head)
      : key_(key), layer_(layer), kv_head_(kv_head) {}

  std::uint64_t word(std::uint64_t i) const;

  /// Uniform in [0, 1): the word's upper 53 bits / 2^53.
  double uniform(std::uint64_t i) const { return static_cast<double>(word(i) >> 11) * 0x1.0p-53; }

  /// Standard normal: sqrt(-2 log(1 - u)) cos(2 pi u') of the uniforms 2 i and 2 i + 1 (Box and
  /// Muller, Annals of Mathematical Statistics 29, 1958). |x| < 8.6. The cosine is the math
  /// library's, so machines agree up to its rounding.
  double normal(std::uint64_t i) const;

  /// `out[j] = uniform(first + j)`.
  void uniforms(std::uint64_t first, std::span<double> out) const;

  double next_uniform() { return uniform(position_++); }
  std::uint64_t next_word() { return word(position_++); }
  /// Unbiased integer in [0, bound), bound >= 1, by rejection.
  std::uint64_t next_below(std::uint64_t bound);

 private:
  std::uint64_t key_ = 0;
  std::uint32_t layer_ = 0;
  std::uint32_t kv_head_ = 0;
  std::uint64_t position_ = 0;
};

/// The streams of one job; the purpose completes the key.
class Rng {
 public:
  Rng() = default;
  Rng(std::uint64_t seed, const HeadId& head, std::string_view algorithm);

  RngStream stream(std::string_view purpose) const;

  /// The streams of one part of a composition, independent of the other parts and the whole.
  Rng part(std::string_view name) const;

 private:
  std::uint64_t base_ = 0;  // hash of (seed, prompt, algorithm)
  std::uint32_t layer_ = 0;
  std::uint32_t kv_head_ = 0;
};

/// `count` distinct positions of [0, n), ascending, uniform over subsets (Floyd's algorithm if
/// count is small, otherwise a partial shuffle). 0 <= count <= n.
std::vector<Index> sample_without_replacement(RngStream& rng, Index n, Index count);

}  // namespace kvbench
