// Half and bfloat16: all 65536 patterns both ways and every rounding boundary, against a reference
// that works with doubles and powers of two.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/float16.hpp"

namespace kvbench::test_float16 {
namespace {

struct Format {
  int fraction_bits;
  int exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format kHalf{10, 5};
constexpr Format kBfloat16{7, 8};

// The value of a pattern; NaN for any NaN.
double reference_value(std::uint16_t bits, Format f) {
  const int fraction = bits & ((1 << f.fraction_bits) - 1);
  const int exponent = (bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << f.exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - f.bias() - f.fraction_bits);
  }
  return sign *
         std::ldexp(fraction + (1 << f.fraction_bits), exponent - f.bias() - f.fraction_bits);
}

// The pattern nearest to a finite or infinite x, ties to even, found by rounding x / ulp.
std::uint16_t reference_round(float x, Format f) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  const int top = (1 << f.exponent_bits) - 1;
  const auto infinity = static_cast<std::uint16_t>(sign | (top << f.fraction_bits));
  if (std::isinf(x)) {
    return infinity;
  }
  int exponent = magnitude == 0 ? 0 : std::ilogb(magnitude) + f.bias();
  exponent = std::max(exponent, 1);
  const double ulp = std::ldexp(1.0, exponent - f.bias() - f.fraction_bits);
  const auto steps = static_cast<int>(std::nearbyint(magnitude / ulp));
  // `steps` counts from zero at this exponent's spacing; the hidden bit is one exponent.
  const int pattern = steps + ((exponent - 1) << f.fraction_bits);
  return pattern >= (top << f.fraction_bits) ? infinity
                                             : static_cast<std::uint16_t>(sign | pattern);
}

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<std::uint16_t>(i);
  }
  return bits;
}

std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

// Every pattern's value, the midpoints between neighbours, and the floats beside both.
std::vector<float> boundary_floats(Format f) {
  std::vector<float> out;
  const auto around = [&out](float x) {
    for (const float y : {x, std::nextafterf(x, INFINITY), std::nextafterf(x, -INFINITY)}) {
      out.push_back(y);
      out.push_back(-y);
    }
  };
  const int top = ((1 << f.exponent_bits) - 1) << f.fraction_bits;
  for (int i = 0; i < top; ++i) {
    const double low = reference_value(static_cast<std::uint16_t>(i), f);
    const double ulp = i + 1 < top ? reference_value(static_cast<std::uint16_t>(i + 1), f) - low
                                   : low - reference_value(static_cast<std::uint16_t>(i - 1), f);
    around(static_cast<float>(low));
    around(static_cast<float>(low + ulp / 2));
  }
  for (const float x :
       {0.0f, INFINITY, std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
        std::numeric_limits<float>::denorm_min()}) {
    out.push_back(x);
    out.push_back(-x);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) {
      out.push_back(x);
    }
  }
  return out;
}

TEST(Float16, WidensEveryPattern) {
  const auto bits = all_patterns();
  const auto count = static_cast<Index>(bits.size());
  std::vector<float> half(bits.size());
  std::vector<float> brain(bits.size());
  half_to_float(bits.data(), half.data(), count);
  bfloat16_to_float(bits.data(), brain.data(), count);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const double expected = reference_value(bits[i], kHalf);
    const float got = half_to_float(bits[i]);
    ASSERT_EQ(bits_of(got), bits_of(half[i])) << i;
    ASSERT_EQ(std::signbit(got), (bits[i] & 0x8000) != 0) << i;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << i;
      ASSERT_EQ(bits_of(got) & 0x7fffffu, (std::uint32_t{bits[i]} & 0x3ffu) << 13 | 0x400000u) << i;
    } else {
      ASSERT_EQ(static_cast<double>(got), expected) << i;
    }
    ASSERT_EQ(bits_of(bfloat16_to_float(bits[i])), bits_of(brain[i])) << i;
    ASSERT_EQ(bits_of(brain[i]), static_cast<std::uint32_t>(bits[i]) << 16) << i;
  }
}

TEST(Float16, NarrowsEveryPatternBackToItself) {
  for (const std::uint16_t bits : all_patterns()) {
    const bool half_nan = (bits & 0x7fff) > 0x7c00;
    const bool bfloat16_nan = (bits & 0x7fff) > 0x7f80;
    // NaN comes back quiet.
    ASSERT_EQ(float_to_half(half_to_float(bits)), half_nan ? bits | 0x200 : bits) << bits;
    ASSERT_EQ(float_to_bfloat16(bfloat16_to_float(bits)), bfloat16_nan ? bits | 0x40 : bits)
        << bits;
  }
}

TEST(Float16, RoundsToNearestEven) {
  struct Kind {
    DType type;
    Format format;
    std::uint16_t (*scalar)(float);
    void (*bulk)(const float*, std::uint16_t*, Index);
  };
  const Kind kinds[] = {{DType::float16, kHalf, float_to_half, float_to_half},
                        {DType::bfloat16, kBfloat16, float_to_bfloat16, float_to_bfloat16}};
  for (const Kind& kind : kinds) {
    const auto x = boundary_floats(kind.format);
    const auto count = static_cast<Index>(x.size());
    std::vector<std::uint16_t> bulk(x.size());
    kind.bulk(x.data(), bulk.data(), count);
    std::vector<float> rounded = x;
    round_to(kind.type, rounded.data(), count);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint16_t expected = reference_round(x[i], kind.format);
      ASSERT_EQ(kind.scalar(x[i]), expected) << name(kind.type) << " " << x[i];
      ASSERT_EQ(bulk[i], expected) << name(kind.type) << " " << x[i];
      ASSERT_EQ(bits_of(rounded[i]), bits_of(round_to(kind.type, x[i]))) << x[i];
      ASSERT_EQ(static_cast<double>(rounded[i]), reference_value(expected, kind.format)) << x[i];
    }
  }
}

TEST(Float16, NanStaysNan) {
  // Payloads that sit only in bits which narrowing drops.
  for (const std::uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7fc00000u, 0x7fffffffu, 0xffbfffffu}) {
    const auto x = std::bit_cast<float>(bits);
    const std::vector<float> many(16, x);
    std::vector<std::uint16_t> half(16);
    std::vector<std::uint16_t> brain(16);
    float_to_half(many.data(), half.data(), 16);
    float_to_bfloat16(many.data(), brain.data(), 16);
    EXPECT_GT(half[0] & 0x7fff, 0x7c00);
    EXPECT_GT(brain[0] & 0x7fff, 0x7f80);
    EXPECT_EQ(half[0], float_to_half(x));
    EXPECT_EQ(brain[0], float_to_bfloat16(x));
    std::vector<float> rounded = many;
    round_to(DType::bfloat16, rounded.data(), 16);
    EXPECT_TRUE(std::isnan(rounded[3]));
  }
}

TEST(Float16, Float32IsLeftAlone) {
  std::vector<float> x{1.0f / 3, -0.0f, 1e-45f};
  const auto before = x;
  round_to(DType::float32, x.data(), 3);
  EXPECT_EQ(x, before);
  EXPECT_EQ(round_to(DType::float32, x[0]), x[0]);
}

TEST(Float16, SumsAreStoredOneByOne) {
  std::mt19937_64 generator(5);
  std::normal_distribution<double> normal;
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    for (const Index count : {0, 1, 7, 8, 45}) {
      std::vector<float> sums;
      std::vector<double> add;
      for (Index i = 0; i < count; ++i) {
        const double size = i % 5 == 4 ? 1e40 : i % 5 == 3 ? 7e4 : 1.0;  // beyond the edges too
        sums.push_back(static_cast<float>(normal(generator)));
        add.push_back(size * normal(generator));
      }
      std::vector<float> expected;
      for (Index i = 0; i < count; ++i) {
        expected.push_back(stored(type, static_cast<double>(sums[i]) + add[i]));
      }
      store_sums(type, add.data(), sums.data(), count);
      EXPECT_EQ(sums, expected);
    }
  }
}

TEST(Float16, FindsNonFiniteAtAnyPlace) {
  for (const Index count : {1, 7, 8, 9, 31, 4096, 5000, 8192}) {
    std::vector<float> x(count, std::numeric_limits<float>::max());
    EXPECT_TRUE(all_finite(x.data(), count));
    EXPECT_EQ(first_non_finite(x.data(), count), count);
    for (const Index at : {Index{0}, count / 2, count - 1}) {
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        const auto i = static_cast<std::size_t>(at);
        const float saved = x[i];
        x[i] = bad;
        EXPECT_FALSE(all_finite(x.data(), count));
        EXPECT_EQ(first_non_finite(x.data(), count), at);
        x[i] = saved;
      }
    }
  }
  EXPECT_TRUE(all_finite(nullptr, 0));
}

}  // namespace
}  // namespace kvbench::test_float16
