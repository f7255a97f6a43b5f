// A stream with revival on a device against the CPU's: every move and every score, to the bit.
#include <gtest/gtest.h>

#include <array>

#include "core/rng.hpp"
#include "gpu/operations.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_revival {
namespace {

constexpr std::size_t kScratch = std::size_t{1} << 20;

// What a ReviveTask points at.
struct Input {
  KvHead head;
  std::vector<SketchHash> hashes;
  std::vector<ReviveStep> steps;
  ReviveTask task;

  Input(const HeadShape& shape, unsigned seed, const ReviveRules& rules, Index rows, Index cells,
        CellEstimate estimate = CellEstimate::sum)
      : head(make_head(shape, seed)) {
    round_keys();
    const RngStream words = Rng(7, {"p", 1, 2}, "kvreviver").stream("sketch");
    for (std::uint64_t w = 0; w < static_cast<std::uint64_t>(4 * rows); w += 4) {
      hashes.push_back({words.word(w), words.word(w + 1), words.word(w + 2), words.word(w + 3)});
    }
    task.rules = rules;
    task.hashes = hashes;
    task.cells = cells;
    task.dtype = shape.dtype;
    task.estimate = estimate;
  }
  Input(const Input&) = delete;

  void round_keys() { round_to(head.dtype, head.k.data(), head.n() * head.d()); }

  // Every position has a query; the first `sink` are never inserted, the last `recent` not yet.
  Input& stream(Index recent, Index sink = 0) {
    for (Index j = 0; j < head.n(); ++j) {
      steps.push_back({j, j - recent >= sink ? j - recent : -1, j >= head.q_start()});
    }
    task.steps = steps;
    return *this;
  }

  // Some positions are inserted; some of those have a query.
  Input& prefill() {
    for (Index j = 2; j < head.n() - 1; ++j) {
      if (j % 7 != 3) {
        steps.push_back({j, j, j >= head.q_start() && j % 5 != 1});
      }
    }
    task.steps = steps;
    return *this;
  }
};

struct Moved {
  Index out = 0;   // moves from Candidate to Vague alone
  Index back = 0;  // swaps
};

void expect_same_in(const KvHead& host, const Input& in, Moved& moved, std::size_t scratch) {
  SCOPED_TRACE(name(host.precision));
  const auto cpu = open_revival(host, in.task);
  const auto device = [&] {  // it needs neither the device's head nor the task any more
    const gpu::DeviceHead head(gpu::Device(0, scratch), host);
    return gpu::revive(head, in.task);
  }();
  for (const ReviveStep& step : in.steps) {
    const auto a = cpu->step(step);
    const auto b = device->step(step);
    ASSERT_EQ(std::vector(a.begin(), a.end()), std::vector(b.begin(), b.end())) << step.position;
    for (const ReviveMove& move : a) {
      ++(move.in < 0 ? moved.out : moved.back);
    }
  }
  const auto a = cpu->scores();
  const auto b = device->scores();
  ASSERT_EQ(a.size(), static_cast<std::size_t>(in.head.n()));
  ASSERT_EQ(b.size(), a.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
}

// In both precisions; float64's moves count.
void expect_same(const Input& in, Moved& moved, std::size_t scratch = kScratch) {
  KvHead single = in.head;
  single.precision = Precision::float32;
  Moved others;
  expect_same_in(single, in, others, scratch);
  for (Index g = 0; g < single.group(); ++g) {
    single.sink_logit.push_back(0.5F * static_cast<float>(g));
  }
  expect_same_in(single, in, others, scratch);
  expect_same_in(in.head, in, moved, scratch);
}

HeadShape shape_of(Index n, Index d, Index group, DType dtype = DType::float32) {
  HeadShape shape{
      .n = n, .nq = n, .d = d, .dv = 1, .group = group, .key_norm = 5.0, .dtype = dtype};
  return shape;
}

class GpuRevival : public testing_gpu::OnDevice {};

TEST_F(GpuRevival, EveryShape) {
  Moved moved;
  for (const Index n : {1, 2, 31, 33, 70}) {
    for (const Index d : {1, 3, 17, 64, 80}) {
      SCOPED_TRACE(testing::Message() << "n " << n << " d " << d);
      const HeadShape shape = shape_of(n, d, 1 + d % 4);
      const ReviveRules rules{3, 2, 5, 1.0, Reduce::mean};
      ASSERT_NO_FATAL_FAILURE(
          expect_same(Input(shape, static_cast<unsigned>(n + d), rules, 3, 4).prefill(), moved));
      for (const auto& [sink, recent] : {std::pair<Index, Index>{0, 0}, {0, 9}, {5, 9}}) {
        ASSERT_NO_FATAL_FAILURE(expect_same(
            Input(shape, static_cast<unsigned>(n + d), rules, 3, 4).stream(recent, sink), moved));
      }
    }
  }
  EXPECT_GT(moved.out, 500);
  EXPECT_GT(moved.back, 50);
}

TEST_F(GpuRevival, EveryGroupReductionElementAndEstimate) {
  Moved moved;
  unsigned number = 0;
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    for (const CellEstimate estimate : {CellEstimate::sum, CellEstimate::mean}) {
      for (const Index rows : {1, 2, 3, 4, 5}) {
        const Index group = 1 + number % 9;
        const Reduce reduce = std::array{Reduce::mean, Reduce::max, Reduce::sum}[rows % 3];
        SCOPED_TRACE(testing::Message()
                     << "group " << group << ' ' << name(dtype) << " rows " << rows);
        HeadShape shape = shape_of(60, 19, group, dtype);
        shape.key_norm = 15.0;
        Input in(shape, number, {2, 1, 4, 1.0, reduce}, rows, 3, estimate);
        ASSERT_NO_FATAL_FAILURE(expect_same(number % 2 == 0 ? in.prefill() : in.stream(0), moved));
        ++number;
      }
    }
  }
  EXPECT_GT(moved.back, 30);
}

// Every rate of swapping, tiny caches, none of one kind.
TEST_F(GpuRevival, TinyCachesAndManySwaps) {
  Moved moved;
  const HeadShape shape = shape_of(90, 6, 2, DType::float16);
  for (const double rate : {1.0, 1.1, 3.0}) {
    for (const Index recent : {0, 1}) {
      for (const Index candidates : {0, 1, 40}) {
        for (const Index slack : {0, 6}) {
          SCOPED_TRACE(testing::Message()
                       << rate << ' ' << recent << ' ' << candidates << ' ' << slack);
          ASSERT_NO_FATAL_FAILURE(expect_same(
              Input(shape, 3, {recent, slack, candidates, rate, Reduce::mean}, 3, 1 + slack)
                  .stream(0),
              moved));
        }
      }
    }
  }
  EXPECT_GT(moved.back, 100);
}

// Beyond one column per thread.
TEST_F(GpuRevival, LongerThanTheBlockIsWide) {
  Moved moved;
  for (const Index n : {511, 513, 1100}) {
    HeadShape shape = shape_of(n, 4, 3);
    shape.nq = 40;
    ASSERT_NO_FATAL_FAILURE(
        expect_same(Input(shape, 5, {20, 16, 30, 1.0, Reduce::mean}, 3, 12).prefill(), moved));
  }
  EXPECT_GT(moved.out, 1000);
  EXPECT_GT(moved.back, 10);
}

// Equal scores everywhere, cells cut to the largest element, no query at all.
TEST_F(GpuRevival, TiesOverflowsAndNoQueries) {
  const ReviveRules rules{4, 3, 9, 1.0, Reduce::mean};
  for (const DType dtype : {DType::float16, DType::float32}) {
    const HeadShape shape = shape_of(90, 5, 2, dtype);
    const auto with = [&](const auto& change) {
      Input in(shape, 11, rules, 3, 4);
      change(in.head);
      in.round_keys();
      Moved moved;
      expect_same(in.stream(0), moved);
      return moved;
    };
    with([](KvHead& head) {
      for (Index i = 1; i < head.n(); ++i) {
        std::copy_n(head.k.row(0), head.d(), head.k.row(i));
      }
    });
    with([](KvHead& head) {
      for (Matrix& q : head.q) {
        std::fill_n(q.data(), q.rows() * q.cols(), 0.0F);
      }
    });
    with([](KvHead& head) { head.k = Matrix(head.n(), head.d()); });
    with([](KvHead& head) { head.k = odd_keys(head.n(), head.d(), 14); });
    const float largest = largest_element(dtype);
    const Moved huge = with([&](KvHead& head) {
      for (Index i = 0; i < head.n() * head.d(); ++i) {
        head.k.data()[i] = head.k.data()[i] < 0 ? -largest : largest;
      }
    });
    EXPECT_GT(huge.out, 50);
    const Moved mute = with([](KvHead& head) { head.q.assign(2, Matrix(0, head.d())); });
    EXPECT_GT(mute.out, 50);
    EXPECT_EQ(mute.back, 0);
  }
}

// A log with little room: the launch ends, and another goes on.
TEST_F(GpuRevival, LittleScratch) {
  Moved moved;
  Input in(shape_of(120, 8, 3), 21, {5, 16, 9, 1.0, Reduce::mean}, 3, 5);
  in.stream(4);
  const auto before = testing_gpu::launches();
  expect_same(in, moved, 1);
  EXPECT_GT(moved.out + moved.back, 80);
  if (before) {
    EXPECT_GT(*testing_gpu::launches() - *before, 2);
  }
}

TEST_F(GpuRevival, NoSteps) {
  Moved moved;
  expect_same(Input(shape_of(5, 2, 1), 1, {1, 0, 1, 1.0, Reduce::mean}, 3, 1), moved);
  EXPECT_EQ(moved.out + moved.back, 0);
}

}  // namespace
}  // namespace kvbench::test_gpu_revival
