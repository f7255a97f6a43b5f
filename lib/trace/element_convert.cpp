#include "trace/element_convert.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/float16.hpp"

namespace kvbench::h5 {

namespace {

static_assert(std::endian::native == std::endian::little, "stored bits are used as they are");

void from_half(const std::uint8_t* from, Index count, void* to) {
  half_to_float(reinterpret_cast<const std::uint16_t*>(from), static_cast<float*>(to), count);
}

void from_bfloat16(const std::uint8_t* from, Index count, void* to) {
  bfloat16_to_float(reinterpret_cast<const std::uint16_t*>(from), static_cast<float*>(to), count);
}

void from_single(const std::uint8_t* from, Index count, void* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

template <class From, class To>
void from_number(const std::uint8_t* from, Index count, void* to) {
  for (Index i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * static_cast<Index>(sizeof x), sizeof x);
    auto y = static_cast<To>(x);  // NOLINT(bugprone-signed-char-misuse): int8 is a number here
    if constexpr (std::is_same_v<From, std::uint64_t>) {
      y = static_cast<To>(std::min<From>(x, std::numeric_limits<To>::max()));
    }
    std::memcpy(static_cast<std::uint8_t*>(to) + i * static_cast<Index>(sizeof y), &y, sizeof y);
  }
}

// Two byte planes, `stride` apart, back to 16-bit elements.
void join(const std::uint8_t* plane, Index stride, std::uint16_t* out, Index count) {
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    out[i] = static_cast<std::uint16_t>(plane[i] | plane[stride + i] << 8);
  }
}

// Four byte planes. By halves, which the compiler vectorises best.
void join(const std::uint8_t* plane, Index stride, std::uint32_t* out, Index count) {
  const std::uint8_t* upper = plane + 2 * stride;
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    const auto low = static_cast<std::uint16_t>(plane[i] | plane[stride + i] << 8);
    const auto high = static_cast<std::uint16_t>(upper[i] | upper[stride + i] << 8);
    out[i] = std::uint32_t{low} | std::uint32_t{high} << 16;
  }
}

}  // namespace

Convert bfloat16_converter() {
  return from_bfloat16;
}

Convert real_converter(const Element& e) {
  return e.bytes == 2 ? from_half : e.bytes == 4 ? from_single : from_number<double, float>;
}

Convert integer_converter(const Element& e) {
  const bool natural = e.kind == Element::Kind::natural;
  using To = std::int64_t;
  switch (e.bytes) {
    case 1: return natural ? from_number<std::uint8_t, To> : from_number<std::int8_t, To>;
    case 2: return natural ? from_number<std::uint16_t, To> : from_number<std::int16_t, To>;
    case 4: return natural ? from_number<std::uint32_t, To> : from_number<std::int32_t, To>;
    default: return natural ? from_number<std::uint64_t, To> : from_number<std::int64_t, To>;
  }
}

const std::uint8_t* joined(const std::uint8_t* plain, Index width, Index all, Index first,
                           Index count, ElementBlock& block) {
  const std::uint8_t* plane = plain + first;
  auto* bytes = reinterpret_cast<std::uint8_t*>(block.data());
  if (width == 2) {
    join(plane, all, reinterpret_cast<std::uint16_t*>(bytes), count);
  } else if (width == 4) {
    join(plane, all, reinterpret_cast<std::uint32_t*>(bytes), count);
  } else {
    for (Index b = 0; b < width; ++b) {
      for (Index i = 0; i < count; ++i) {
        bytes[i * width + b] = plane[b * all + i];
      }
    }
  }
  return bytes;
}

const std::uint8_t* turned(const std::uint8_t* from, Index width, Index count,
                           ElementBlock& block) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(block.data());
  if (from != bytes) {
    std::memcpy(bytes, from, static_cast<std::size_t>(count * width));
  }
  for (Index i = 0; i < count; ++i) {
    std::reverse(bytes + i * width, bytes + (i + 1) * width);
  }
  return bytes;
}

}  // namespace kvbench::h5
