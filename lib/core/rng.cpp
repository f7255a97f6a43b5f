#include "core/rng.hpp"

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "core/math.hpp"

namespace kvbench {
namespace {

// SplitMix64's mixer, which finishes FNV-1a over the bytes. Keys only need to differ; Philox does
// the rest.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::uint64_t hash_text(std::uint64_t h, std::string_view text) {
  for (const char c : text) {
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  // The length separates ("ab","c") from ("a","bc").
  return mix(h ^ (text.size() + 0x9e3779b97f4a7c15ULL));
}

}  // namespace

std::uint64_t RngStream::word(std::uint64_t i) const {
  const std::uint64_t block = i / 2;
  const r123::Philox4x32::ctr_type counter = {{static_cast<std::uint32_t>(block),
                                               static_cast<std::uint32_t>(block >> 32), layer_,
                                               kv_head_}};
  const r123::Philox4x32::key_type key = {
      {static_cast<std::uint32_t>(key_), static_cast<std::uint32_t>(key_ >> 32)}};
  const auto r = r123::Philox4x32()(counter, key);
  const unsigned o = (i % 2) * 2;
  return static_cast<std::uint64_t>(r[o]) | static_cast<std::uint64_t>(r[o + 1]) << 32;
}

double RngStream::normal(std::uint64_t i) const {
  // 1 - u is never 0.
  const double radius = std::sqrt(-2.0 * log1p_shared(-uniform(2 * i)));
  return radius * std::cos(2.0 * std::numbers::pi * uniform(2 * i + 1));
}

void RngStream::uniforms(std::uint64_t first, std::span<double> out) const {
  for (std::size_t j = 0; j < out.size(); ++j) {
    out[j] = uniform(first + j);
  }
}

std::uint64_t RngStream::next_below(std::uint64_t bound) {
  // Rejects words above the largest multiple of `bound`.
  const std::uint64_t excess = (~std::uint64_t{0} % bound + 1) % bound;
  const std::uint64_t limit = ~std::uint64_t{0} - excess;
  std::uint64_t w = next_word();
  while (w > limit) {
    w = next_word();
  }
  return w % bound;
}

Rng::Rng(std::uint64_t seed, const HeadId& head, std::string_view algorithm)
    : base_(hash_text(hash_text(mix(seed ^ 0xcbf29ce484222325ULL), head.prompt), algorithm)),
      layer_(static_cast<std::uint32_t>(head.layer)),
      kv_head_(static_cast<std::uint32_t>(head.kv_head)) {}

RngStream Rng::stream(std::string_view purpose) const {
  return {hash_text(base_, purpose), layer_, kv_head_};
}

Rng Rng::part(std::string_view name) const {
  Rng out = *this;
  out.base_ = mix(hash_text(base_, name));
  return out;
}

std::vector<Index> sample_without_replacement(RngStream& rng, Index n, Index count) {
  std::vector<Index> picked;
  picked.reserve(count);
  if (count * 8 < n) {
    // Floyd: step j adds a draw from [0, j], or j if already drawn.
    std::vector<bool> in(n, false);
    for (Index j = n - count; j < n; ++j) {
      auto t = static_cast<Index>(rng.next_below(static_cast<std::uint64_t>(j) + 1));
      if (in[t]) {
        t = j;
      }
      in[t] = true;
      picked.push_back(t);
    }
  } else {
    std::vector<Index> all(n);
    std::iota(all.begin(), all.end(), Index{0});
    for (Index j = 0; j < count; ++j) {
      const auto t = j + static_cast<Index>(rng.next_below(static_cast<std::uint64_t>(n - j)));
      std::swap(all[j], all[t]);
      picked.push_back(all[j]);
    }
  }
  std::sort(picked.begin(), picked.end());
  return picked;
}

}  // namespace kvbench
