// Merged rows: the CPU's function by its definition, a machine's against it to the bit, and the
// methods that merge on both.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/device_merge.hpp"
#include "attention/device_on.hpp"
#include "attention/merge_rows.hpp"
#include "core/float16.hpp"
#include "make_head.hpp"

namespace kvbench {

Method method_cam();
Method method_count_merge();
Method method_d2o();
Method method_kmeans();

namespace {

constexpr std::size_t kPlenty = std::size_t{1} << 28;
constexpr DType kTypes[] = {DType::float16, DType::bfloat16, DType::float32};

Matrix by_definition(MatrixView from, const RowMerge& merge, DType type) {
  Matrix out(static_cast<Index>(merge.lists.size()), from.cols);
  for (std::size_t j = 0; j < merge.lists.size(); ++j) {
    for (Index c = 0; c < from.cols; ++c) {
      double sum = 0.0;
      for (Index i = merge.lists[j].begin; i < merge.lists[j].end; ++i) {
        const auto x = static_cast<double>(from.row(merge.members[static_cast<std::size_t>(i)])[c]);
        sum += merge.shares.empty() ? x : x / merge.shares[static_cast<std::size_t>(i)];
      }
      const double whole = merge.shares.empty()
                               ? sum / static_cast<double>(merge.lists[j].size())
                               : static_cast<double>(from.row(merge.onto[j])[c]) + sum;
      out.row(static_cast<Index>(j))[c] = stored(type, whole);
    }
  }
  return out;
}

void expect_same(MatrixView from, const RowMerge& merge, DType type,
                 std::size_t scratch = kPlenty) {
  SCOPED_TRACE(testing::Message() << merge.lists.size() << " x " << from.cols << ", " << name(type)
                                  << ", scratch " << scratch);
  const Matrix cpu = merge_rows(from, merge, type);
  ASSERT_TRUE(same_bits(cpu, by_definition(from, merge, type)));
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    machine.set_scratch_bytes(scratch);
    const Array<float, HostMachine> resident(
        machine,
        std::span<const float>(from.data, static_cast<std::size_t>(from.rows * from.cols)));
    ASSERT_TRUE(same_bits(merge_rows_on(machine, resident.data(), from.cols, merge, type), cpu));
  }
}

// Every row in one list, most in the first: disjoint lists with a long one among them.
RowMerge means_of(Index n, Index lists, std::mt19937_64& generator) {
  std::vector<std::vector<Index>> members(static_cast<std::size_t>(lists));
  for (Index i = 0; i < n; ++i) {
    const auto any = static_cast<Index>(generator() % static_cast<std::uint64_t>(lists));
    members[static_cast<std::size_t>(i < lists ? i : i % 2 == 0 ? 0 : any)].push_back(i);
  }
  RowMerge out;
  for (const std::vector<Index>& m : members) {
    const auto begin = static_cast<Index>(out.members.size());
    out.members.insert(out.members.end(), m.begin(), m.end());
    out.lists.push_back({begin, static_cast<Index>(out.members.size())});
  }
  return out;
}

// Lists that overlap, each onto a row of its own.
RowMerge sums_of(Index n, Index lists, std::mt19937_64& generator) {
  RowMerge out;
  for (Index i = 0; i < n; ++i) {
    out.members.push_back(i);
    out.shares.push_back(static_cast<double>(1 + generator() % 32));
  }
  for (Index j = 0; j < lists; ++j) {
    const auto begin = static_cast<Index>(generator() % static_cast<std::uint64_t>(n));
    const auto length = static_cast<Index>(1 + generator() % 40);
    out.lists.push_back({begin, std::min(n, begin + length)});
    out.onto.push_back(j);
  }
  return out;
}

TEST(MergeRows, EveryShapeAndType) {
  std::mt19937_64 generator(1);
  for (const Index cols : {1, 3, 64, 80, 96, 128, 256}) {
    for (const Index n : {1, 2, 65, 513}) {
      const Matrix m = normal_matrix(n, cols, 8.0, generator);
      for (const DType type : kTypes) {
        for (const Index lists : {Index{1}, (n + 1) / 2, n}) {
          expect_same(m, means_of(n, lists, generator), type);
          expect_same(m, sums_of(n, lists, generator), type);
        }
      }
    }
  }
}

TEST(MergeRows, InPieces) {
  std::mt19937_64 generator(2);
  const Matrix m = normal_matrix(300, 20, 8.0, generator);
  for (const std::size_t scratch : {1UL, 80UL, 1000UL, 7777UL}) {
    expect_same(m, means_of(300, 90, generator), DType::float16, scratch);
    expect_same(m, sums_of(300, 90, generator), DType::float16, scratch);
  }
}

// Zeros of both signs, sums beyond the type's range, denormals.
TEST(MergeRows, OddNumbers) {
  std::mt19937_64 generator(3);
  const float kinds[] = {0.0F, -0.0F, 65504.0F, -65504.0F, 3.4e38F, -3.4e38F, 1e-45F, 6e-8F, 1.0F};
  for (const std::size_t spread : {2, 4, 9}) {
    Matrix m(200, 7);
    for (Index i = 0; i < 200 * 7; ++i) {
      m.data()[i] = kinds[generator() % spread];
    }
    for (const DType type : kTypes) {
      expect_same(m, means_of(200, 50, generator), type);
      expect_same(m, sums_of(200, 50, generator), type);
    }
  }
}

TEST(MergeRows, NoLists) {
  const Matrix m(3, 4);
  expect_same(m, {}, DType::float32);
}

// By hand: the mean of 1, 2 and 6 is 3; onto 10 come 2 / 2 and 6 / 4.
TEST(MergeRows, ByHand) {
  Matrix m(4, 1);
  const float rows[] = {1.0F, 2.0F, 6.0F, 10.0F};
  std::copy(std::begin(rows), std::end(rows), m.data());
  RowMerge mean;
  mean.members = {0, 1, 2};
  mean.lists = {{0, 3}};
  EXPECT_EQ(merge_rows(m, mean, DType::float32).row(0)[0], 3.0F);
  RowMerge sum;
  sum.members = {1, 2};
  sum.shares = {2.0, 4.0};
  sum.lists = {{0, 2}};
  sum.onto = {3};
  EXPECT_EQ(merge_rows(m, sum, DType::float32).row(0)[0], 12.5F);
}

// Keys and values are read where they lie, other rows are copied.
TEST(MergeRows, KeysValuesAndOtherRowsOfAHead) {
  HeadShape shape;
  shape.n = 60;
  shape.d = 12;
  shape.dv = 20;
  const KvHead head = make_head(shape, 4);
  const DeviceHeadOn<HostMachine> device(HostMachine(), head);
  std::mt19937_64 generator(4);
  const Matrix other = normal_matrix(60, 9, 1.0, generator);
  const RowMerge merge = means_of(60, 10, generator);
  for (const Matrix* m : {&head.k, &head.v, &other}) {
    EXPECT_TRUE(same_bits(merge_rows(*m, merge, DType::float16, &device),
                          merge_rows(*m, merge, DType::float16)));
  }
}

TEST(MergeRows, MergingMethodsAreTheSameOnADevice) {
  unsigned seed = 5;
  for (const Method& method : {method_count_merge(), method_d2o(), method_kmeans(), method_cam()}) {
    for (const DType dtype : kTypes) {
      for (const Index n : {1, 2, 40, 513}) {
        HeadShape shape;
        shape.n = n;
        shape.nq = std::min<Index>(n, 20);
        shape.d = 16;
        shape.dv = 24;
        shape.dtype = dtype;
        KvHead head = make_head(shape, ++seed);
        head.k = odd_keys(n, shape.d, seed);  // ties and zero keys
        const ScoreBook book(head);
        const std::vector<Index> tokens = positions(n > 2 ? 3 : 0, n > 2 ? n - 4 : n);
        HostMachine machine(HostMachine::Order::backward);
        machine.set_scratch_bytes(1 << 10);
        const DeviceHeadOn<HostMachine> device(machine, head);
        for (const char* count : {"0", "1", "2", "17", "300"}) {
          SCOPED_TRACE(testing::Message() << method.info.name << " " << n << " to " << count);
          std::map<std::string, std::string> given = {{"tokens", count}};
          if (method.info.name == "cam") {
            given["prefill"] = "once";  // merging one by one is not the device's
          }
          const Params params(method.info.name, method.info.params, given);
          Task task{head, tokens, {}, {n - shape.nq, n}, {}, Rng(1, {}, method.info.name)};
          task.scores = &book;
          const Compressed cpu = method.compress(task, params);
          task.device = &device;
          const Compressed found = method.compress(task, params);
          ASSERT_TRUE(same_bits(found.made.k, cpu.made.k));
          ASSERT_TRUE(same_bits(found.made.v, cpu.made.v));
          ASSERT_EQ(found.made.weights, cpu.made.weights);
          ASSERT_EQ(found.held.tokens, cpu.held.tokens);
          ASSERT_EQ(found.aux_bytes, cpu.aux_bytes);
          ASSERT_EQ(found.diag, cpu.diag);
          if (n == 513 && count == std::string("17")) {
            ASSERT_GT(cpu.made.v.rows(), 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench
