// SoftmaxBalance's walks as block kernels against the CPU's, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "attention/device_walk.hpp"
#include "make_head.hpp"

namespace kvbench {
namespace {

constexpr WalkStep kSteps[] = {WalkStep::theory, WalkStep::fixed, WalkStep::self, WalkStep::greedy,
                               WalkStep::repo};

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
    tokens.resize(static_cast<std::size_t>(count));
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
  ASSERT_EQ(0, std::memcmp(a.probability.data(), b.probability.data(),
                           a.probability.size() * sizeof(double)));
  EXPECT_EQ(a.counts.steps, b.counts.steps);
  EXPECT_EQ(a.counts.failures, b.counts.failures);
  EXPECT_EQ(a.counts.saturated, b.counts.saturated);
  EXPECT_EQ(a.counts.coin, b.counts.coin);
}

Walked on_cpu(const Input& in) {
  Walked out{std::vector<std::int8_t>(in.tokens.size()), std::vector<double>(in.tokens.size()), {}};
  WalkScratch scratch;
  out.counts = balance_blocks(in.head, in.blocks, out.signs, out.probability, scratch);
  return out;
}

Walked on_machine(const Input& in, HostMachine& machine) {
  Walked out{std::vector<std::int8_t>(in.tokens.size()), std::vector<double>(in.tokens.size()), {}};
  const HeadTensors<HostMachine> tensors(machine, in.head);
  out.counts = balance_blocks_on(machine, tensors, in.blocks, out.signs, out.probability);
  return out;
}

void expect_equal_everywhere(const Input& in) {
  const Walked cpu = on_cpu(in);
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    expect_same(cpu, on_machine(in, machine));
    machine.set_scratch_bytes(1);  // a token block at a time
    expect_same(cpu, on_machine(in, machine));
  }
}

TEST(DeviceWalk, EqualsTheCpuForEveryStepAndOption) {
  HeadShape shape;
  shape.n = 300;
  shape.d = 20;
  shape.dv = 9;
  shape.key_offset = 0.5;
  for (const WalkStep step : kSteps) {
    for (const bool center : {false, true}) {
      for (const bool ones : {false, true}) {
        for (const double bias : {0.0, 0.3}) {
          for (const double gamma : {0.0, 1.0, 4.0}) {
            Input in(shape, 150, 64, 7);
            in.blocks.options.step = step;
            in.blocks.options.gamma = gamma;
            in.blocks.options.center = center;
            in.blocks.options.value_bias = bias;
            in.blocks.ones = ones;
            expect_equal_everywhere(in);
          }
        }
      }
    }
  }
}

struct Size {
  Index count, block, d, dv;
};

TEST(DeviceWalk, EqualsTheCpuForEveryShape) {
  for (const Size& s : {Size{1, 256, 8, 8}, Size{2, 2, 1, 3}, Size{7, 1, 3, 1}, Size{7, 2, 64, 80},
                        Size{65, 33, 80, 64}, Size{129, 64, 96, 96}, Size{129, 65, 128, 1},
                        Size{513, 256, 128, 128}, Size{300, 300, 256, 31}, Size{200, 127, 33, 65},
                        Size{1100, 1024, 3, 2}, Size{1100, 1025, 2, 3}}) {
    HeadShape shape;
    shape.n = s.count + 5;
    shape.nq = 1;
    shape.d = s.d;
    shape.dv = s.dv;
    Input in(shape, s.count, s.block, static_cast<unsigned>(s.count + s.d));
    in.blocks.options.step = WalkStep::self;
    SCOPED_TRACE(testing::Message() << s.count << " " << s.block << " " << s.d << " " << s.dv);
    expect_equal_everywhere(in);
  }
}

TEST(DeviceWalk, LongestBlock) {
  HeadShape shape;
  shape.n = 4100;
  shape.nq = 1;
  shape.d = 3;
  shape.dv = 2;
  Input in(shape, 4100, 4096, 3);
  HostMachine machine;
  expect_same(on_cpu(in), on_machine(in, machine));
  in.blocks.block = 4097;
  EXPECT_THROW(on_machine(in, machine), InputError);
}

// Pieces of several token blocks, the last piece and its last block shorter.
TEST(DeviceWalk, PiecesOfSeveralBlocks) {
  HeadShape shape;
  shape.n = 150;
  Input in(shape, 139, 16, 5);
  const Walked cpu = on_cpu(in);
  for (const std::size_t blocks : {2U, 3U, 5U}) {
    HostMachine machine;
    machine.set_scratch_bytes(blocks * 64 * 8 * sizeof(double));  // padded tokens times channels
    expect_same(cpu, on_machine(in, machine));
  }
}

TEST(DeviceWalk, ExtremeNormsAndEqualTokens) {
  HeadShape shape;
  shape.n = 70;
  shape.d = 128;
  for (const double key_norm : {0.0, 1e-30, 100.0, 1e15}) {
    for (const double value_norm : {0.0, 1e-30, 1e30}) {
      shape.key_norm = key_norm;
      shape.value_norm = value_norm;
      for (const WalkStep step : kSteps) {
        Input in(shape, 70, 40, 11);
        in.blocks.options.step = step;
        for (Index i = 1; i < 70; i += 2) {
          std::copy_n(in.head.k.row(0), 128, in.head.k.row(i));
          std::copy_n(in.head.v.row(0), 8, in.head.v.row(i));
        }
        HostMachine machine;
        expect_same(on_cpu(in), on_machine(in, machine));
      }
    }
  }
}

TEST(DeviceWalk, NoTokensAndNoProbabilitiesAsked) {
  Input in({}, 30, 8, 2);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, in.head);
  std::vector<std::int8_t> signs(30), again(30);
  WalkScratch scratch;
  balance_blocks(in.head, in.blocks, signs, {}, scratch);
  balance_blocks_on(machine, tensors, in.blocks, again, {});
  EXPECT_EQ(signs, again);
  in.blocks.tokens = {};
  EXPECT_EQ(balance_blocks_on(machine, tensors, in.blocks, {}, {}).steps, 0);
  EXPECT_EQ(balance_blocks(in.head, in.blocks, {}, {}, scratch).steps, 0);
}

}  // namespace
}  // namespace kvbench
