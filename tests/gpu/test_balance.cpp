// SoftmaxBalance's walks on a device against the CPU's, to the bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

#include "gpu/operations.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_balance {
namespace {

// What a BalanceBlocks points at: tokens out of order, weights that are powers of two or not.
struct Input {
  KvHead head;
  std::vector<Index> tokens;
  std::vector<double> weights;
  std::vector<double> uniforms;
  BalanceBlocks blocks;

  Input(const HeadShape& shape, Index count, Index block, unsigned seed)
      : head(make_head(shape, seed)) {
    std::mt19937_64 generator(seed + 1);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    tokens = positions(0, shape.n);
    std::shuffle(tokens.begin(), tokens.end(), generator);
    tokens.resize(count);
    for (Index i = 0; i < count; ++i) {
      weights.push_back(i % 3 == 0 ? 0.3 + uniform(generator)
                                   : std::exp2(static_cast<double>(generator() % 4)));
      uniforms.push_back(uniform(generator));
    }
    blocks.tokens = tokens;
    blocks.weights = weights;
    blocks.uniforms = uniforms;
    blocks.block = block;
    blocks.options.scale = head.scale;
  }
  Input(const Input&) = delete;
};

struct Walked {
  std::vector<std::int8_t> signs;
  std::vector<double> probability;
  WalkCounts counts;
};

// Bits, so that neither NaN nor the sign of a zero passes unseen.
void expect_same(const Walked& a, const Walked& b) {
  ASSERT_EQ(a.signs, b.signs);
  ASSERT_EQ(a.probability.size(), b.probability.size());
  for (std::size_t i = 0; i < a.probability.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(a.probability[i]),
              std::bit_cast<std::uint64_t>(b.probability[i]));
  }
  EXPECT_EQ(a.counts.steps, b.counts.steps);
  EXPECT_EQ(a.counts.failures, b.counts.failures);
  EXPECT_EQ(a.counts.saturated, b.counts.saturated);
  EXPECT_EQ(a.counts.coin, b.counts.coin);
}

Walked on_cpu(const Input& in) {
  Walked out{std::vector<std::int8_t>(in.tokens.size()), std::vector<double>(in.tokens.size()), {}};
  out.counts = balance_blocks(in.head, in.blocks, out.signs, out.probability);
  return out;
}

Walked on_gpu(const Input& in, std::size_t scratch) {
  Walked out{std::vector<std::int8_t>(in.tokens.size()), std::vector<double>(in.tokens.size()), {}};
  const gpu::DeviceHead head(gpu::Device(0, scratch), in.head);
  out.counts = gpu::balance_blocks(head, in.blocks, out.signs, out.probability);
  return out;
}

// In both precisions, with scratch for all blocks, for some, and for one.
void expect_equal(Input& in, bool on_device = true) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    in.head.precision = precision;
    const Walked cpu = on_cpu(in);
    const auto block = static_cast<std::size_t>(in.blocks.block);
    const auto bytes = static_cast<std::size_t>(bytes_per_element(precision));
    for (const std::size_t scratch :
         {std::size_t{1} << 30, 2 * bytes * block * block, std::size_t{1}}) {
      const auto before = testing_gpu::launches();
      expect_same(cpu, on_gpu(in, scratch));
      if (before) {
        EXPECT_EQ(testing_gpu::launches() > before, on_device);
      }
    }
  }
}

void expect_equal(Input&& in, bool on_device) {
  expect_equal(in, on_device);
}

class GpuBalance : public testing_gpu::OnDevice {};

TEST_F(GpuBalance, EqualsTheCpuForEveryStepAndOption) {
  HeadShape shape{.n = 200, .d = 20, .dv = 9, .key_offset = 0.5};
  for (const WalkStep step :
       {WalkStep::theory, WalkStep::fixed, WalkStep::self, WalkStep::greedy, WalkStep::repo}) {
    for (const bool center : {false, true}) {
      for (const bool ones : {false, true}) {
        for (const double bias : {0.0, 0.3}) {
          for (const double gamma : {0.0, 1.0, 4.0}) {
            Input in(shape, 180, 64, 7);
            in.blocks.options.step = step;
            in.blocks.options.gamma = gamma;
            in.blocks.options.center = center;
            in.blocks.options.value_bias = bias;
            in.blocks.ones = ones;
            expect_equal(in);
          }
        }
      }
    }
  }
}

// Weights that are no power of two, and a last block of 52 tokens in the mean of 64.
TEST_F(GpuBalance, PlainBiasAndPaddedMean) {
  HeadShape shape{.n = 200, .key_offset = 0.5};
  for (const WalkStep step : {WalkStep::fixed, WalkStep::self, WalkStep::repo}) {
    for (const bool ones : {false, true}) {
      Input in(shape, 180, 64, 11);
      in.blocks.options.step = step;
      in.blocks.options.plain_bias = true;
      in.blocks.options.value_bias = 0.3;
      in.blocks.options.padded = 64;
      in.blocks.ones = ones;
      expect_equal(in);
    }
  }
}

struct Size {
  Index count, block, d, dv;
};

TEST_F(GpuBalance, EqualsTheCpuForEveryShape) {
  for (const Size& s :
       {Size{64, 256, 8, 8}, Size{65, 64, 1, 3}, Size{129, 65, 128, 1}, Size{513, 256, 130, 128},
        Size{300, 300, 33, 31}, Size{200, 127, 17, 65}, Size{257, 257, 3, 2},
        Size{1100, 1024, 3, 2}, Size{1100, 1025, 2, 3}, Size{2100, 2100, 2, 1}}) {
    HeadShape shape{.n = s.count + 5, .nq = 1, .d = s.d, .dv = s.dv};
    Input in(shape, s.count, s.block, static_cast<unsigned>(s.count + s.d));
    in.blocks.options.step = WalkStep::self;
    SCOPED_TRACE(testing::Message() << s.count << " " << s.block << " " << s.d << " " << s.dv);
    expect_equal(in);
  }
}

// Zero keys, equal keys and values of zero: sums of exactly 0, and logarithms of 0.
TEST_F(GpuBalance, OddKeys) {
  HeadShape shape{.n = 150};
  Input in(shape, 150, 75, 3);
  in.head.k = odd_keys(150, 8, 4);
  std::fill_n(in.head.v.row(0), 8 * 40, 0.0F);
  for (const WalkStep step : {WalkStep::theory, WalkStep::greedy, WalkStep::self}) {
    in.blocks.options.step = step;
    expect_equal(in);
  }
  std::fill_n(in.head.v.data(), 150 * 8, 0.0F);
  expect_equal(in);
}

// Exponents beyond what exp can take.
TEST_F(GpuBalance, LargeNorms) {
  HeadShape shape{.n = 140, .key_norm = 200.0};
  Input in(shape, 140, 70, 9);
  expect_equal(in);
}

TEST_F(GpuBalance, ShortAndLongBlocksAreTheCpus) {
  HeadShape shape{.n = 4100, .nq = 1, .d = 2, .dv = 1};
  expect_equal(Input(shape, 63, 256, 1), false);
  expect_equal(Input(shape, 500, 63, 2), false);
  expect_equal(Input(shape, 4100, 4097, 3), false);
  expect_equal(Input(shape, 0, 256, 4), false);
}

TEST_F(GpuBalance, LongestBlock) {
  HeadShape shape{.n = 4100, .nq = 1, .d = 2, .dv = 1};
  const Input in(shape, 4100, 4096, 3);
  expect_same(on_cpu(in), on_gpu(in, 1));
}

TEST_F(GpuBalance, ProbabilitiesAreOptional) {
  HeadShape shape{.n = 130};
  const Input in(shape, 130, 64, 5);
  const gpu::DeviceHead head(gpu::Device(0, 1), in.head);
  std::vector<std::int8_t> signs(in.tokens.size());
  gpu::balance_blocks(head, in.blocks, signs, {});
  EXPECT_EQ(signs, on_cpu(in).signs);
}

}  // namespace
}  // namespace kvbench::test_gpu_balance
