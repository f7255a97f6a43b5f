// Rows coded and read back: the CPU's function group by group, a machine's against it to the bit,
// and quant-kivi on both.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/device_on.hpp"
#include "attention/device_quantize.hpp"
#include "attention/quantize.hpp"
#include "make_head.hpp"

namespace kvbench {

Method method_quant_kivi();

namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 28;

// Group by group with a QuantizedRows of its own each.
Matrix by_groups(MatrixView from, const std::vector<Index>& tokens, const CodeFormat& f) {
  const auto count = static_cast<Index>(tokens.size());
  Matrix out(count, from.cols);
  const bool down = f.along == GroupAlong::tokens;
  for (Index line = 0; line < (down ? from.cols : count); ++line) {
    const Index length = down ? count : from.cols;
    const auto source = [&](Index x) {
      return from.row(tokens[static_cast<std::size_t>(down ? x : line)])[down ? line : x];
    };
    for (Index b = 0; b < length; b += f.group) {
      std::vector<float> group;
      for (Index x = b; x < std::min(length, b + f.group); ++x) {
        group.push_back(source(x));
      }
      QuantizedRows q(f.bits, static_cast<Index>(group.size()), f.group);
      q.append(group);
      q.read(0, group);
      for (std::size_t x = 0; x < group.size(); ++x) {
        const Index at = b + static_cast<Index>(x);
        out.row(down ? at : line)[down ? line : at] = group[x];
      }
    }
  }
  return out;
}

void expect_same(MatrixView from, const std::vector<Index>& tokens, const CodeFormat& f,
                 std::size_t scratch = kPlenty) {
  SCOPED_TRACE(testing::Message() << tokens.size() << " x " << from.cols << ", " << f.bits
                                  << " bits, group " << f.group << ", along tokens "
                                  << (f.along == GroupAlong::tokens) << ", scratch " << scratch);
  const Matrix cpu = read_back(from, tokens, f);
  ASSERT_TRUE(same_bits(cpu, by_groups(from, tokens, f)));
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    machine.set_scratch_bytes(scratch);
    const Array<float, HostMachine> resident(
        machine,
        std::span<const float>(from.data, static_cast<std::size_t>(from.rows * from.cols)));
    ASSERT_TRUE(same_bits(read_back_on(machine, resident.data(), from.cols, tokens, f), cpu));
  }
}

// `count` of n positions, with gaps.
std::vector<Index> some(Index n, Index count, std::mt19937_64& generator) {
  std::vector<Index> out = positions(0, n);
  std::shuffle(out.begin(), out.end(), generator);
  out.resize(static_cast<std::size_t>(count));
  std::sort(out.begin(), out.end());
  return out;
}

TEST(ReadBack, EveryShape) {
  std::mt19937_64 generator(1);
  for (const Index cols : {1, 3, 64, 80, 96, 128, 256}) {
    for (const Index n : {1, 2, 65, 513}) {
      const Matrix m = normal_matrix(n + 5, cols, 8.0, generator);
      const std::vector<Index> tokens = some(n + 5, n, generator);
      for (const int bits : {2, 4, 8}) {
        for (const Index group : {1, 7, 32, 64, 100, 1 << 20}) {
          for (const GroupAlong along : {GroupAlong::tokens, GroupAlong::channels}) {
            if (n < 513 || (bits == 4) == (group > 32)) {  // half of the large ones
              expect_same(m, tokens, {bits, group, along});
            }
          }
        }
      }
    }
  }
}

TEST(ReadBack, InPieces) {
  std::mt19937_64 generator(2);
  const Matrix m = normal_matrix(400, 12, 8.0, generator);
  const std::vector<Index> tokens = some(400, 333, generator);
  for (const std::size_t scratch : {1UL, 100UL, 700UL, 5000UL}) {
    for (const Index group : {1, 5, 32, 100, 200, 333, 1000}) {
      for (const GroupAlong along : {GroupAlong::tokens, GroupAlong::channels}) {
        expect_same(m, tokens, {4, group, along}, scratch);
      }
    }
  }
}

// Zeros of both signs, constant groups, halves that are denormal or beyond the range, and numbers
// that lie midway between codes.
TEST(ReadBack, OddNumbers) {
  std::mt19937_64 generator(3);
  const std::vector<float> kinds = {0.0F,      -0.0F,    1.0F,   -1.0F,   0.5F,     1.5F,
                                    2.5F,      3.0F,     1e-6F,  -3e-8F,  1e-30F,   65504.0F,
                                    -65504.0F, 70000.0F, -1e30F, 3.4e38F, -3.4e38F, 1e-45F};
  for (const std::size_t spread : {1, 2, 8, 11, 18}) {
    Matrix m(70, 40);
    for (Index i = 0; i < 70 * 40; ++i) {
      m.data()[i] = kinds[generator() % spread];
    }
    for (Index i = 0; i < 40; ++i) {
      m.row(5)[i] = 0.0F;
    }
    for (const int bits : {2, 4, 8}) {
      for (const Index group : {1, 4, 33, 70}) {
        for (const GroupAlong along : {GroupAlong::tokens, GroupAlong::channels}) {
          expect_same(m, positions(0, 70), {bits, group, along});
        }
      }
    }
  }
}

TEST(ReadBack, NoTokens) {
  const Matrix m(3, 4);
  expect_same(m, {}, {2, 32, GroupAlong::tokens});
  expect_same(m, {}, {2, 32, GroupAlong::channels});
}

// Keys and values are read where they lie, other rows are copied.
TEST(ReadBack, KeysValuesAndOtherRowsOfAHead) {
  HeadShape shape;
  shape.n = 150;
  shape.d = 12;
  shape.dv = 20;
  const KvHead head = make_head(shape, 4);
  const DeviceHeadOn<HostMachine> device(HostMachine(), head);
  std::mt19937_64 generator(4);
  const Matrix other = normal_matrix(80, 9, 1.0, generator);
  for (const Matrix* m : {&head.k, &head.v, &other}) {
    const std::vector<Index> tokens = some(m->rows(), m->rows() - 7, generator);
    const CodeFormat f{4, 32, GroupAlong::tokens};
    EXPECT_TRUE(same_bits(read_back(*m, tokens, f, &device), read_back(*m, tokens, f)));
  }
}

TEST(ReadBack, QuantKiviIsTheSameOnADevice) {
  const Method method = method_quant_kivi();
  unsigned seed = 5;
  for (const DType dtype : {DType::float16, DType::float32}) {
    for (const Index n : {1, 2, 513}) {
      HeadShape shape;
      shape.n = n;
      shape.nq = 1;
      shape.d = 24;
      shape.dv = 40;
      shape.key_offset = 2.0;
      shape.dtype = dtype;
      const KvHead head = make_head(shape, ++seed);
      HostMachine machine(HostMachine::Order::backward);
      machine.set_scratch_bytes(1 << 12);
      const DeviceHeadOn<HostMachine> device(machine, head);
      const std::vector<Index> tokens = positions(n > 2 ? 3 : 0, n);
      for (const char* residual : {"0", "20", "1000"}) {
        for (const char* group : {"7", "32"}) {
          const Params params("quant-kivi", method.info.params,
                              {{"bits", "4"}, {"group_size", group}, {"residual", residual}});
          Task task{head, tokens, {}, {0, 0}, {}, Rng()};
          const Compressed cpu = method.compress(task, params);
          task.device = &device;
          const Compressed found = method.compress(task, params);
          EXPECT_TRUE(same_bits(found.made.k, cpu.made.k));
          EXPECT_TRUE(same_bits(found.made.v, cpu.made.v));
          EXPECT_EQ(found.held.tokens, cpu.held.tokens);
          EXPECT_EQ(found.payload_bytes, cpu.payload_bytes);
          EXPECT_EQ(found.aux_bytes, cpu.aux_bytes);
          EXPECT_EQ(found.diag, cpu.diag);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench
