// Halves and products of tiles against float64, as a kernel on a machine of the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/split_kernels.hpp"
#include "core/machine.hpp"
#include "core/tile_product.hpp"

namespace kvbench {
namespace {

double value_of(SplitHalf x) {
  return static_cast<double>(half_value(x.hi)) +
         static_cast<double>(half_value(x.lo)) * static_cast<double>(kLowUnit);
}

TEST(SplitHalf, HoldsEveryHalfWithoutLo) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((bits & 0x7c00U) == 0x7c00U) {
      continue;  // infinities and NaN
    }
    const float x = half_to_float(half);
    ASSERT_EQ(half_bits(x), half);
    ASSERT_TRUE(fits_half(x));
    const SplitHalf split = split_half(x);
    ASSERT_EQ(split.hi, half);
    ASSERT_EQ(split.lo & 0x7fffU, 0U);
  }
}

// hi is off by half a unit of 11 bits at most, lo by half a unit of 11 bits of that.
TEST(SplitHalf, Carries22BitsOfEverySignificand) {
  for (const float unit : {1.0F, 0x1p14F, 0x1p-13F}) {
    for (std::uint32_t fraction = 0; fraction < 0x800000U; fraction += 3) {
      const float x = std::bit_cast<float>(0x3f800000U | fraction) * unit;
      const auto wide = static_cast<double>(x);
      const double off = std::abs(value_of(split_half(x)) - wide);
      ASSERT_TRUE(off <= 0x1p-22 * wide) << x;
      ASSERT_TRUE(std::abs(value_of(split_half(-wide)) + wide) <= 0x1p-22 * wide) << x;
    }
  }
  // Where hi is subnormal the bound is absolute.
  for (float x = 0x1p-14F; x > 0x1p-60F; x *= 0.77F) {
    const double off = std::abs(value_of(split_half(x)) - static_cast<double>(x));
    ASSERT_TRUE(off <= 0x1p-36) << x;
  }
}

TEST(HalfScale, BringsTheLargestToTheTop) {
  for (const double most : {1e-7, 1.0, 0.9999, 2.0, 40.0, 65504.0, 3e38, 1e100}) {
    const double scaled = std::ldexp(most, half_scale(most, true).exponent);
    EXPECT_TRUE(scaled >= 0x1p14 && scaled < 0x1p15) << most;
  }
  EXPECT_EQ(half_scale(0.0, false).exponent, 0);
  EXPECT_EQ(half_scale(1e-40, false).exponent, 40);
  EXPECT_FALSE(fits_half(1.0F + 0x1p-11F));
  EXPECT_TRUE(fits_half(1.0F + 0x1p-10F));
  EXPECT_TRUE(fits_half(3e38F * 0.0F));
}

TEST(HalfScale, OfArraysSeesEveryElement) {
  for (const Index count : {Index{1}, Index{255}, fast::FindFacts::kPiece + 3}) {
    for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
      HostMachine machine(order);
      std::vector<float> x(static_cast<std::size_t>(count), 0.5F);
      x.back() = -5.0F;
      HalfScale scale = fast::half_scale_of(machine, Array<float, HostMachine>(machine, x));
      EXPECT_EQ(scale.exponent, 12);
      EXPECT_FALSE(scale.split);
      EXPECT_EQ(fast::half_scale_of(std::span<const float>(x)).exponent, 12);
      x.front() = 0.1F;
      scale = fast::half_scale_of(machine, Array<float, HostMachine>(machine, x));
      EXPECT_TRUE(scale.split);
      EXPECT_TRUE(fast::half_scale_of(std::span<const float>(x)).split);
    }
  }
  HostMachine machine;
  EXPECT_EQ(fast::half_scale_of(machine, Array<float, HostMachine>()).exponent, 0);
  const std::vector<double> narrow = {0.25, -1.0};
  const std::vector<double> wide = {0.25, 1.0 + 1e-12};  // float32 would hold it as 1
  EXPECT_FALSE(fast::half_scale_of(std::span<const double>(narrow)).split);
  EXPECT_TRUE(fast::half_scale_of(std::span<const double>(wide)).split);
}

// out [rows, 64 columns] of every tile of rows: two warps with R tiles of rows each.
template <int R>
struct InnerKernel {
  static constexpr int kThreads = 64;
  struct Shared {
    ProductTile<R> tile[2];
  };

  SplitRows a, b;
  Index row_tiles, column_tiles;
  float* out;

  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index block, int thread, Shared& shared) const {
    if (!runs_warp(thread)) {
      return;
    }
    const int warp = thread / kWarpLanes;
    const Index row = (block % row_tiles * 2 + warp) * R * kTileSide;
    const Index column = block / row_tiles * ProductTile<R>::kColumns;
    inner_tile(a, row, b, column, shared.tile[warp]);
    for_lanes(thread, [&](int lane) {
      for (int r = 0; r < R * kTileSide; ++r) {
        for (int c = lane; c < ProductTile<R>::kColumns; c += kWarpLanes) {
          out[(row + r) * column_tiles * ProductTile<R>::kColumns + column + c] =
              shared.tile[warp].at(r, c);
        }
      }
    });
  }
};

std::vector<float> numbers(Index count, DType type, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& value : x) {
    value = round_to(type, normal(random));
  }
  return x;
}

template <int R>
std::vector<float> inner_of(HostMachine& machine, const std::vector<float>& a, HalfScale of_a,
                            const std::vector<float>& b, HalfScale of_b, Index d) {
  const auto rows = static_cast<Index>(a.size()) / d;
  const auto columns = static_cast<Index>(b.size()) / d;
  const Array<float, HostMachine> a_there(machine, a);
  const Array<float, HostMachine> b_there(machine, b);
  fast::Packed<HostMachine> left(machine, rows, d, of_a);
  fast::Packed<HostMachine> right(machine, columns, d, of_b);
  left.pack(machine, a_there.data(), nullptr, rows);
  right.pack(machine, b_there.data(), nullptr, columns);
  const Index row_tiles = fast::padded_rows(rows) / (2 * R * kTileSide);
  const Index column_tiles = fast::padded_rows(columns) / 64;
  const Array<float, HostMachine> out(machine,
                                      fast::padded_rows(rows) * fast::padded_rows(columns));
  machine.launch(InnerKernel<R>{left.view(), right.view(), row_tiles, column_tiles, out.data()},
                 row_tiles * column_tiles);
  std::vector<float> got(static_cast<std::size_t>(out.size()));
  out.get(got);
  return got;
}

// Relative to the sum of absolute products: 3 2^-22 for halves, 2^-24 for each of d / 16 + 16
// roundings in float32 of each of up to three sums.
double bound_of(Index d) {
  return 3 * 0x1p-22 + static_cast<double>(d / 16 + 17) * 0x1p-24;
}

template <int R>
void check_inner(Index rows, Index columns, Index d, DType type_a, DType type_b) {
  SCOPED_TRACE(testing::Message() << R << " " << rows << " x " << columns << " of " << d);
  const std::vector<float> a = numbers(rows * d, type_a, 1);
  const std::vector<float> b = numbers(columns * d, type_b, 2);
  const HalfScale of_a = fast::half_scale_of(std::span<const float>(a));
  const HalfScale of_b = fast::half_scale_of(std::span<const float>(b));
  EXPECT_EQ(of_a.split, type_a == DType::float32);
  HostMachine forward;
  HostMachine backward(HostMachine::Order::backward);
  const std::vector<float> got = inner_of<R>(forward, a, of_a, b, of_b, d);
  const std::vector<float> again = inner_of<R>(backward, a, of_a, b, of_b, d);
  ASSERT_EQ(0, std::memcmp(got.data(), again.data(), got.size() * sizeof(float)));
  const Index stride = fast::padded_rows(columns);
  for (Index r = 0; r < fast::padded_rows(rows); ++r) {
    for (Index c = 0; c < stride; ++c) {
      double want = 0.0;
      double size = 0.0;
      for (Index t = 0; r < rows && c < columns && t < d; ++t) {
        const double product = static_cast<double>(a[static_cast<std::size_t>(r * d + t)]) *
                               static_cast<double>(b[static_cast<std::size_t>(c * d + t)]);
        want += product;
        size += std::abs(product);
      }
      const double x =
          std::ldexp(static_cast<double>(got[static_cast<std::size_t>(r * stride + c)]),
                     -of_a.exponent - of_b.exponent);
      ASSERT_TRUE(std::abs(x - want) <= bound_of(d) * size) << r << " " << c << ": " << x;
    }
  }
}

TEST(InnerTile, EveryShapeAndType) {
  constexpr DType kTypes[] = {DType::float16, DType::bfloat16, DType::float32};
  for (const DType a : kTypes) {
    for (const DType b : kTypes) {
      check_inner<1>(33, 65, 80, a, b);
      check_inner<2>(129, 64, 96, a, b);
    }
  }
  for (const Index d : {1, 3, 16, 17, 64, 128, 256}) {
    check_inner<2>(1, 2, d, DType::float32, DType::float16);
    check_inner<1>(70, 130, d, DType::float32, DType::float32);
  }
}

// Small integers: every sum is exact, whatever its order.
TEST(InnerTile, IntegersAreExact) {
  std::vector<float> a(32 * 48);
  std::vector<float> b(64 * 48);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i * 7 % 13) - 6.0F;
  }
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = static_cast<float>(i * 5 % 11) - 5.0F;
  }
  HostMachine machine;
  const std::vector<float> got = inner_of<2>(machine, a, {0, true}, b, {0, false}, 48);
  for (std::size_t r = 0; r < 32; ++r) {
    for (std::size_t c = 0; c < 64; ++c) {
      float want = 0.0F;
      for (std::size_t t = 0; t < 48; ++t) {
        want += a[r * 48 + t] * b[c * 48 + t];
      }
      ASSERT_EQ(got[r * 128 + c], want);
    }
  }
}

// A float32 operand without its lo is worth 11 bits: the second and third products do something.
TEST(InnerTile, LoCarriesTheLowerHalf) {
  const std::vector<float> a = numbers(16 * 64, DType::float32, 5);
  const std::vector<float> b = numbers(16 * 64, DType::float32, 6);
  HostMachine machine;
  const auto worst = [&](bool split_a, bool split_b) {
    const std::vector<float> got = inner_of<1>(machine, a, {12, split_a}, b, {12, split_b}, 64);
    double off = 0.0;
    for (std::size_t r = 0; r < 16; ++r) {
      for (std::size_t c = 0; c < 16; ++c) {
        double want = 0.0;
        for (std::size_t t = 0; t < 64; ++t) {
          want += static_cast<double>(a[r * 64 + t]) * static_cast<double>(b[c * 64 + t]);
        }
        off =
            std::max(off, std::abs(std::ldexp(static_cast<double>(got[r * 128 + c]), -24) - want));
      }
    }
    return off;
  };
  EXPECT_TRUE(worst(true, true) < 2e-5);
  EXPECT_TRUE(worst(false, true) > 1e-4);
  EXPECT_TRUE(worst(true, false) > 1e-4);
}

// Columns of the right operand's tiles (values, under weights), fewer than there is room for.
struct ColumnsKernel {
  static constexpr int kThreads = 32;
  struct alignas(32) Shared {
    std::uint16_t hi[16][24];
    std::uint16_t lo[16][24];
  };

  const float* a;  // [16, 16]
  SplitRows b;     // 16 rows, 3 tiles of channels
  float* out;      // [16, 64]

  KVB_HD int phases(Index) const { return 1; }
  KVB_HD void run(int, Index, int thread, Shared& shared) const {
    if (!runs_warp(thread)) {
      return;
    }
    for_lanes(thread, [&](int lane) {
      for (int i = lane; i < kTileSize; i += kWarpLanes) {
        const SplitHalf split = split_half(a[i] * 0x1p12F);
        shared.hi[i / 16][i % 16] = split.hi;
        shared.lo[i / 16][i % 16] = split.lo;
      }
    });
    TileSums<1, 4> sums;
    sums.clear_all();
    for (int twice = 0; twice < 2; ++twice) {
      sums.multiply_add<RightSide::columns>({shared.hi[0], shared.lo[0], 0, 24}, b.across(0, 0), 3);
    }
    sums.store_all(out, 64, 3);
  }
};

TEST(TileSums, ColumnsOfTheRightOperandAndSumsThatGoOn) {
  const std::vector<float> a = numbers(16 * 16, DType::float32, 7);
  const std::vector<float> b = numbers(16 * 48, DType::float32, 8);
  HostMachine machine;
  const Array<float, HostMachine> a_there(machine, a);
  const Array<float, HostMachine> b_there(machine, b);
  fast::Packed<HostMachine> packed(machine, 16, 48, {12, true});
  packed.pack(machine, b_there.data(), nullptr, 16);
  Array<float, HostMachine> out(machine, 16 * 64);
  out.zero();
  machine.launch(ColumnsKernel{a_there.data(), packed.view(), out.data()}, 1);
  std::vector<float> got(16 * 64);
  out.get(got);
  for (std::size_t r = 0; r < 16; ++r) {
    for (std::size_t c = 0; c < 64; ++c) {
      double want = 0.0;
      double size = 0.0;
      for (std::size_t k = 0; c < 48 && k < 16; ++k) {
        const double product =
            static_cast<double>(a[r * 16 + k]) * static_cast<double>(b[k * 48 + c]);
        want += 2.0 * product;
        size += 2.0 * std::abs(product);
      }
      const double x = std::ldexp(static_cast<double>(got[r * 64 + c]), -24);
      ASSERT_TRUE(std::abs(x - want) <= bound_of(32) * size) << r << " " << c;
    }
  }
}

TEST(PackChannels, EqualsPackedRows) {
  // Two groups of 128 columns, 20 channels: the same numbers both ways round.
  const std::vector<float> rows = numbers(256 * 20, DType::float32, 9);
  std::vector<double> channels(rows.size());
  for (std::size_t i = 0; i < 256; ++i) {
    for (std::size_t t = 0; t < 20; ++t) {
      channels[(i / 128 * 20 + t) * 128 + i % 128] = static_cast<double>(rows[i * 20 + t]);
    }
  }
  HostMachine machine(HostMachine::Order::backward);
  fast::Packed<HostMachine> a(machine, 256, 20, {12, true});
  fast::Packed<HostMachine> b(machine, 256, 20, {12, true});
  const Array<float, HostMachine> rows_there(machine, rows);
  const Array<double, HostMachine> channels_there(machine, channels);
  a.pack(machine, rows_there.data(), nullptr, 256);
  b.pack_channels(machine, channels_there.data(), 2, 128);
  const auto bytes = static_cast<std::size_t>(fast::packed_size(256, 20)) * 2;
  EXPECT_EQ(0, std::memcmp(a.hi(), b.hi(), bytes));
  EXPECT_EQ(0, std::memcmp(a.lo(), b.lo(), bytes));
}

}  // namespace
}  // namespace kvbench
