// A stream with revival as a block kernel: the cache that follows its log against the one that
// attends on the CPU, every field of every view, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "algorithms/revive_cache.hpp"
#include "attention/device_on.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "make_head.hpp"

namespace kvbench {

Method method_kvreviver();

namespace {

RevivePlan plan_of(const HeadShape& shape, Index recent, Index slack, Index candidates, Index rows,
                   Index cells, CellEstimate estimate = CellEstimate::sum) {
  RevivePlan plan;
  plan.recent = recent;
  plan.slack = slack;
  plan.candidates = candidates;
  plan.sketch = {rows, cells, shape.d, shape.dv, shape.dtype, estimate};
  return plan;
}

RngStream words() {
  return Rng(7, {"p", 1, 2}, "kvreviver").stream("sketch");
}

KvHead head_of(const HeadShape& shape, unsigned seed) {
  KvHead head = make_head(shape, seed);
  round_to(shape.dtype, head.k.data(), shape.n * shape.d);
  round_to(shape.dtype, head.v.data(), shape.n * shape.dv);
  return head;
}

// Every position has a query; the first `sink` are never the cache's, the last `recent` not yet.
std::vector<ReviveStep> stream_steps(Index n, Index recent, Index sink = 0) {
  std::vector<ReviveStep> steps;
  for (Index j = 0; j < n; ++j) {
    steps.push_back({j, j - recent >= sink ? j - recent : -1, true});
  }
  return steps;
}

// Some of the positions are the cache's; some of those have a query.
std::vector<ReviveStep> prefill_steps(const KvHead& head) {
  std::vector<ReviveStep> steps;
  for (Index j = 2; j < head.n() - 1; ++j) {
    if (j % 7 != 3) {
      steps.push_back({j, j, j >= head.q_start() && j % 5 != 1});
    }
  }
  return steps;
}

void expect_same_matrix(const Matrix& a, const Matrix& b) {
  ASSERT_EQ(a.rows(), b.rows());
  ASSERT_EQ(a.cols(), b.cols());
  const auto bytes = static_cast<std::size_t>(a.rows() * a.cols()) * sizeof(float);
  ASSERT_TRUE(bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0);
}

void expect_same_view(const Compressed& a, const Compressed& b) {
  ASSERT_EQ(a.held.tokens, b.held.tokens);
  ASSERT_EQ(a.held.weights, b.held.weights);
  ASSERT_EQ(a.held.common, b.held.common);
  ASSERT_NO_FATAL_FAILURE(expect_same_matrix(a.made.k, b.made.k));
  ASSERT_NO_FATAL_FAILURE(expect_same_matrix(a.made.v, b.made.v));
  ASSERT_EQ(a.made.weights, b.made.weights);
  ASSERT_EQ(a.denominator.has_value(), b.denominator.has_value());
  ASSERT_EQ(a.aux_bytes, b.aux_bytes);
  ASSERT_EQ(a.payload_bytes, b.payload_bytes);
  ASSERT_EQ(a.transient_bytes, b.transient_bytes);
  ASSERT_EQ(a.diag, b.diag);
}

// Adds to `swaps` how many tokens came back.
void expect_same(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
                 const std::vector<ReviveStep>& steps, Index& swaps,
                 std::size_t scratch_bytes = std::size_t{1} << 20) {
  std::vector<ReviveCache> followers;
  std::vector<ReviveLog> logs;
  followers.reserve(2);
  for (const auto order : {HostMachine::Order::forward, HostMachine::Order::backward}) {
    HostMachine machine(order);
    machine.set_scratch_bytes(scratch_bytes);
    const HeadTensors<HostMachine> tensors(machine, head);
    followers.emplace_back(head, plan, options, words());
    logs.push_back(revive_on(machine, tensors, followers.back().rules(steps)));
    followers.back().follow(logs.back());
  }
  ASSERT_EQ(logs[0].moves, logs[1].moves);
  ReviveCache cpu(head, plan, options, words());
  const std::size_t often = std::max<std::size_t>(1, steps.size() / 16);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    SCOPED_TRACE(testing::Message() << "step " << s);
    for (ReviveCache* cache : {&cpu, &followers[0], &followers[1]}) {
      cache->arrive(steps[s].position, steps[s].has_query);
      if (steps[s].insert >= 0) {
        cache->insert(steps[s].insert);
      }
    }
    for (const ReviveCache& follower : followers) {
      ASSERT_EQ(cpu.recent(), follower.recent());
      ASSERT_EQ(cpu.candidates(), follower.candidates());
      ASSERT_EQ(cpu.vague(), follower.vague());
      if (s % often == 0 || s + 1 == steps.size()) {
        ASSERT_NO_FATAL_FAILURE(expect_same_view(cpu.view(), follower.view()));
      }
    }
  }
  for (const ReviveLog& log : logs) {
    ASSERT_EQ(static_cast<Index>(log.scores.size()), head.n());
    for (Index i = 0; i < head.n(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(cpu.score(i)),
                std::bit_cast<std::uint32_t>(log.scores[static_cast<std::size_t>(i)]));
    }
  }
  swaps += cpu.swaps();
}

// Prefill, and streams where every position has its query.
void both_protocols(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
                    Index& swaps) {
  ASSERT_NO_FATAL_FAILURE(expect_same(head, plan, options, prefill_steps(head), swaps));
  for (const auto& [sink, recent] : {std::pair<Index, Index>{0, 0}, {0, 9}, {5, 9}}) {
    ASSERT_NO_FATAL_FAILURE(
        expect_same(head, plan, options, stream_steps(head.n(), recent, sink), swaps));
  }
}

// Swaps as often as scores allow.
ReviveOptions eager() {
  ReviveOptions options;
  options.replace_rate = 1.0;
  return options;
}

HeadShape shape_of(Index n, Index d, Index dv, Index group, DType dtype = DType::float32) {
  HeadShape shape;
  shape.n = n;
  shape.nq = n;
  shape.d = d;
  shape.dv = dv;
  shape.group = group;
  shape.key_norm = 5.0;
  shape.dtype = dtype;
  return shape;
}

TEST(DeviceRevive, EveryShape) {
  Index swaps = 0;
  for (const Index n : {1, 2, 31, 33, 70}) {
    for (const Index d : {1, 3, 64, 80, 96, 128, 256}) {
      for (const Index group : {1, 3}) {
        SCOPED_TRACE(testing::Message() << "n " << n << " d " << d << " group " << group);
        const HeadShape shape = shape_of(n, d, d % 5 + 2, group);
        const KvHead head = head_of(shape, static_cast<unsigned>(n + d));
        ASSERT_NO_FATAL_FAILURE(
            both_protocols(head, plan_of(shape, 3, 2, 5, 3, 4), eager(), swaps));
      }
    }
  }
  EXPECT_GT(swaps, 100);
}

TEST(DeviceRevive, EveryGroupReductionElementAndEstimate) {
  Index swaps = 0;
  Index number = 0;
  for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 11}) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
      for (const CellEstimate estimate : {CellEstimate::sum, CellEstimate::mean}) {
        const Index rows = 1 + number % 5;
        ReviveOptions options = eager();
        options.reduce = std::array{Reduce::mean, Reduce::max,
                                    Reduce::sum}[static_cast<std::size_t>(number / 5 % 3)];
        SCOPED_TRACE(testing::Message()
                     << "group " << group << ' ' << name(dtype) << " rows " << rows);
        const HeadShape shape = shape_of(60, 12, 7, group, dtype);
        const KvHead head = head_of(shape, static_cast<unsigned>(number));
        ASSERT_NO_FATAL_FAILURE(
            both_protocols(head, plan_of(shape, 2, 1, 4, rows, 3, estimate), options, swaps));
        ++number;
      }
    }
  }
  EXPECT_GT(swaps, 100);
}

// Every rate of swapping, tiny caches, none of one kind.
TEST(DeviceRevive, TinyCachesAndManySwaps) {
  Index swaps = 0;
  const HeadShape shape = shape_of(120, 6, 6, 2, DType::float16);
  const KvHead head = head_of(shape, 3);
  for (const double rate : {1.0, 1.1, 3.0}) {
    for (const Index rows : {1, 2, 3, 4}) {
      for (const Index recent : {0, 1}) {
        for (const Index candidates : {0, 1, 40}) {
          for (const Index slack : {0, 6}) {
            SCOPED_TRACE(testing::Message() << rate << ' ' << rows << ' ' << recent << ' '
                                            << candidates << ' ' << slack);
            ReviveOptions options;
            options.replace_rate = rate;
            const RevivePlan plan = plan_of(shape, recent, slack, candidates, rows, 1 + slack);
            ASSERT_NO_FATAL_FAILURE(
                expect_same(head, plan, options, stream_steps(shape.n, 0), swaps));
          }
        }
      }
    }
  }
  EXPECT_GT(swaps, 300);
}

// Beyond the tokens that a block's threads multiply at a time.
TEST(DeviceRevive, LongerThanTheBlockIsWide) {
  Index swaps = 0;
  for (const Index group : {3, 8}) {
    for (const Index n : {479, 513, 1100, 2100}) {
      HeadShape shape = shape_of(n, 4, 3, group);
      shape.nq = std::min<Index>(n, 60);
      const KvHead head = head_of(shape, 5);
      const RevivePlan plan = plan_of(shape, 20, 16, 30, 3, 12);
      ASSERT_NO_FATAL_FAILURE(expect_same(head, plan, eager(), prefill_steps(head), swaps));
    }
  }
  EXPECT_GT(swaps, 50);
  swaps = 0;
  HeadShape shape = shape_of(513, 3, 2, 2, DType::bfloat16);
  shape.key_norm = 20.0;
  const RevivePlan plan = plan_of(shape, 20, 16, 100, 3, 12);
  expect_same(head_of(shape, 6), plan, eager(), stream_steps(513, 12), swaps);
  EXPECT_GT(swaps, 5);
}

// More query heads than one pass takes, and channels that leave room for few of them.
TEST(DeviceRevive, PassesOverQueryHeads) {
  for (const auto& [d, group] : {std::pair<Index, Index>{700, 7}, {2049, 2}, {5, 19}}) {
    SCOPED_TRACE(testing::Message() << "d " << d << " group " << group);
    HeadShape shape = shape_of(60, d, 2, group);
    shape.key_norm = 100.0;
    Index swaps = 0;
    both_protocols(head_of(shape, 8), plan_of(shape, 2, 1, 4, 3, 3), eager(), swaps);
    EXPECT_GT(swaps, 0);
  }
}

TEST(DeviceRevive, KeysThatAreTooWide) {
  const HeadShape shape = shape_of(3, 4097, 1, 1);
  const KvHead head = make_head(shape, 1);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const ReviveCache cache(head, plan_of(shape, 1, 0, 1, 3, 1), {}, words());
  const std::vector<ReviveStep> steps = stream_steps(3, 0);
  EXPECT_THROW(revive_on(machine, tensors, cache.rules(steps)), InputError);
}

// Equal scores everywhere, cells cut to the largest element, no query at all.
TEST(DeviceRevive, TiesOverflowsAndNoQueries) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    const HeadShape shape = shape_of(90, 5, 4, 2, dtype);
    const RevivePlan plan = plan_of(shape, 4, 3, 9, 3, 4);
    const ReviveOptions options = eager();
    Index swaps = 0;
    KvHead same = head_of(shape, 11);
    for (Index i = 1; i < shape.n; ++i) {
      std::copy_n(same.k.row(0), shape.d, same.k.row(i));
    }
    ASSERT_NO_FATAL_FAILURE(both_protocols(same, plan, options, swaps));
    KvHead silent = head_of(shape, 12);
    for (Matrix& q : silent.q) {
      std::fill_n(q.data(), shape.n * shape.d, 0.0F);
    }
    ASSERT_NO_FATAL_FAILURE(both_protocols(silent, plan, options, swaps));
    KvHead zeros = head_of(shape, 13);
    zeros.k = Matrix(shape.n, shape.d);
    ASSERT_NO_FATAL_FAILURE(both_protocols(zeros, plan, options, swaps));
    KvHead odd = head_of(shape, 14);
    odd.k = odd_keys(shape.n, shape.d, 14);
    round_to(dtype, odd.k.data(), shape.n * shape.d);
    ASSERT_NO_FATAL_FAILURE(both_protocols(odd, plan, options, swaps));
    KvHead huge = head_of(shape, 15);
    const float most = dtype == DType::float16 ? 60000.0F : 3e38F;
    for (Index i = 0; i < shape.n * shape.d; ++i) {
      huge.k.data()[i] = huge.k.data()[i] < 0 ? -most : most;
    }
    ASSERT_NO_FATAL_FAILURE(both_protocols(huge, plan, options, swaps));
    ReviveCache check(huge, plan, options, words());
    for (Index j = 0; j < shape.n; ++j) {
      check.arrive(j, true);
      check.insert(j);
    }
    EXPECT_GT(check.sketch().overflows(), 0);
    KvHead mute = head_of(shape, 16);
    mute.q.assign(2, Matrix(0, shape.d));
    Index none = 0;
    expect_same(mute, plan, options, prefill_steps(mute), none);
    EXPECT_EQ(none, 0);
  }
}

// A log that has to be fetched after every move.
TEST(DeviceRevive, LittleScratch) {
  const HeadShape shape = shape_of(120, 8, 8, 3);
  const KvHead head = head_of(shape, 21);
  const RevivePlan plan = plan_of(shape, 5, 16, 9, 3, 5);
  for (const std::size_t bytes : {1, 24, 100}) {
    Index swaps = 0;
    expect_same(head, plan, eager(), stream_steps(shape.n, 4), swaps, bytes);
    EXPECT_GT(swaps, 5);
  }
}

// The method as a whole: prefill of some tokens with the queries of some, and a stream at every
// position; budgets with which all is exact, something is, and nothing can be.
TEST(DeviceRevive, TheMethodIsTheSame) {
  const Method method = method_kvreviver();
  Index all_exact = 0;
  for (const DType dtype : {DType::float16, DType::float32}) {
    const HeadShape shape = shape_of(150, 16, 12, 4, dtype);
    const KvHead head = head_of(shape, 31);
    KvHead late = head;  // without its first queries
    for (Matrix& q : late.q) {
      Matrix last(shape.n - 20, shape.d);
      std::copy_n(q.row(20), (shape.n - 20) * shape.d, last.data());
      q = last;
    }
    std::vector<Index> tokens;
    for (const ReviveStep& step : prefill_steps(head)) {
      tokens.push_back(step.insert);
    }
    const DeviceHeadOn<HostMachine> device(HostMachine(), head);
    const DeviceHeadOn<HostMachine> late_device(HostMachine(HostMachine::Order::backward), late);
    for (const char* estimate : {"sum", "mean"}) {
      const Params params(
          "kvreviver", method.info.params,
          {{"estimate", estimate}, {"replace_rate", "1"}, {"slack", "5"}, {"prefill", "stream"}});
      for (const Index budget_tokens : {2, 70, 110, 1000}) {
        SCOPED_TRACE(testing::Message() << estimate << " budget " << budget_tokens);
        const Index budget = budget_tokens * head.pair_bytes();
        const Rng rng(5, {"p", 0, 0}, "kvreviver");
        Task task{late, tokens, budget, {30, 140}, {}, rng};
        Task on_device = task;
        on_device.device = &late_device;
        if (budget_tokens == 2) {
          EXPECT_THROW(method.compress(on_device, params), Infeasible);
          EXPECT_THROW(method.open_stream({head, 9, budget, rng, &device}, params), Infeasible);
          continue;
        }
        const Compressed whole = method.compress(task, params);
        expect_same_view(whole, method.compress(on_device, params));
        all_exact += whole.held.tokens == tokens ? 1 : 0;
        for (const Index sink : {0, 20, 145, 1000}) {
          const auto cpu = method.open_stream({head, 9, budget, rng, nullptr, sink}, params);
          const auto follower = method.open_stream({head, 9, budget, rng, &device, sink}, params);
          for (Index j = 0; j < shape.n; ++j) {
            for (StreamCache* cache : {cpu.get(), follower.get()}) {
              cache->append(j, j - 9 >= sink ? j - 9 : -1);
            }
            ASSERT_NO_FATAL_FAILURE(expect_same_view(cpu->view(), follower->view())) << j;
          }
        }
      }
    }
  }
  EXPECT_EQ(all_exact, 4);
}

TEST(DeviceRevive, NoSteps) {
  const HeadShape shape = shape_of(5, 2, 2, 1);
  const KvHead head = head_of(shape, 1);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const ReviveCache cache(head, plan_of(shape, 1, 0, 1, 3, 1), {}, words());
  const ReviveLog log = revive_on(machine, tensors, cache.rules({}));
  EXPECT_TRUE(log.moves.empty());
  EXPECT_EQ(log.scores, std::vector<float>(5, 0.0F));
}

}  // namespace
}  // namespace kvbench
