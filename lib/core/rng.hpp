// Counter-based randomness: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011), from Random123. A stream is a pure function of what it is for, so that a
// selection does not depend on threads, shards, the order of jobs, or the device.
//
// Key (64 bits)   = hash64(seed, prompt, algorithm, purpose)
// Counter (128)   = { block low, block high, layer, kv_head }
// One block gives two 64-bit words; draw i is word i % 2 of block i / 2.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// One independent stream of random 64-bit words with random access. Cheap to copy.
class RngStream {
 public:
  RngStream() = default;
  RngStream(std::uint64_t key, std::uint32_t layer, std::uint32_t kv_head)
      : key_(key), layer_(layer), kv_head_(kv_head) {}

  /// The `i`-th word of the stream, whatever was drawn before.
  std::uint64_t word(std::uint64_t i) const;

  /// The `i`-th draw as a uniform in [0, 1): the word's upper 53 bits / 2^53.
  double uniform(std::uint64_t i) const { return static_cast<double>(word(i) >> 11) * 0x1.0p-53; }

  /// The `i`-th draw as a standard normal: sqrt(-2 log(1 - u)) cos(2 pi u') of the uniforms 2 i and
  /// 2 i + 1 (Box and Muller, Annals of Mathematical Statistics 29, 1958). Finite: |x| < 8.6. The
  /// cosine is the math library's, so machines agree to its rounding.
  double normal(std::uint64_t i) const;

  /// `out[j] = uniform(first + j)`.
  void uniforms(std::uint64_t first, std::span<double> out) const;

  /// Sequential drawing on top of the counter.
  double next_uniform() { return uniform(position_++); }
  std::uint64_t next_word() { return word(position_++); }
  /// Unbiased integer in [0, bound), bound >= 1 (rejection on the top of the word's range).
  std::uint64_t next_below(std::uint64_t bound);

 private:
  std::uint64_t key_ = 0;
  std::uint32_t layer_ = 0;
  std::uint32_t kv_head_ = 0;
  std::uint64_t position_ = 0;
};

/// Makes the streams of one job: everything in the key but the purpose is fixed.
class Rng {
 public:
  Rng() = default;
  Rng(std::uint64_t seed, const HeadId& head, std::string_view algorithm);

  /// The stream for one purpose ("walk", "fill", ...); the same purpose gives the same stream.
  RngStream stream(std::string_view purpose) const;

  /// The streams of one part of a composition: independent of the other parts' and of the whole's.
  Rng part(std::string_view name) const;

 private:
  std::uint64_t base_ = 0;  // hash of (seed, prompt, algorithm)
  std::uint32_t layer_ = 0;
  std::uint32_t kv_head_ = 0;
};

/// `count` distinct positions of [0, n), ascending, every subset equally likely
/// (Floyd's algorithm when count is small, a partial shuffle otherwise). 0 <= count <= n.
std::vector<Index> sample_without_replacement(RngStream& rng, Index n, Index count);

}  // namespace kvbench
