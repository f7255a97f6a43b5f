// Streams that evict by attention as one block kernel against the CPU's, to the bit: what goes, its
// score, the scores behind it, and what h2o, tova and cam hold at every position.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "algorithms/evicting_cache.hpp"
#include "attention/device_on.hpp"
#include "make_head.hpp"

namespace kvbench {

Method method_h2o();
Method method_cam();
Method method_tova();

namespace {

using Given = std::map<std::string, std::string>;
using HostHead = DeviceHeadOn<HostMachine>;

constexpr HostMachine::Order kOrders[] = {HostMachine::Order::forward,
                                          HostMachine::Order::backward};

enum class Keys { normal, odd, equal, zero };

KvHead head_of(Index n, Index d, Index group, Keys keys, unsigned seed) {
  HeadShape shape;
  shape.n = shape.nq = n;
  shape.d = d;
  shape.dv = 3;
  shape.group = group;
  KvHead head = make_head(shape, seed);
  if (keys == Keys::odd) {
    head.k = odd_keys(n, d, seed);
  }
  for (Index i = 1; keys == Keys::equal && i < n; ++i) {
    std::copy_n(head.k.row(0), d, head.k.row(i));
  }
  if (keys == Keys::zero) {
    std::fill_n(head.k.data(), n * d, 0.0F);
  }
  return head;
}

StreamTask task_of(const KvHead& head, Index recent, const DeviceHead* device, Index sink = 0) {
  return {head, recent, {}, Rng(1, {"p", 0, 0}, "test"), device, sink};
}

Index leaving(Index j, Index recent, Index sink = 0) {
  return j - recent < sink ? -1 : j - recent;
}

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Returns how many tokens went, and how many of them were not the oldest that could.
std::pair<int, int> expect_equal(const KvHead& head, const EvictionRules& rules) {
  SCOPED_TRACE(testing::Message() << "n " << head.n() << " d " << head.d() << " group "
                                  << head.group() << " kept " << rules.kept << " window "
                                  << rules.window << " protected " << rules.protected_recent
                                  << " sink " << rules.sink);
  EvictingCache cache(task_of(head, rules.window, nullptr, rules.sink), rules);
  std::vector<Eviction> cpu;
  int others = 0;
  for (Index j = 0; j < head.n(); ++j) {
    const Index oldest = cache.tokens().empty() ? -1 : cache.tokens().front();
    cpu.push_back(cache.step(j, leaving(j, rules.window, rules.sink)));
    EXPECT_TRUE(cpu.back().token < 0 || cpu.back().token >= rules.sink);
    others += cpu.back().token >= 0 && cpu.back().token != oldest ? 1 : 0;
  }
  int gone = 0;
  for (const auto order : kOrders) {
    const HostHead device(HostMachine(order), head);
    const std::vector<Eviction> found = device.evictions(rules);
    EXPECT_EQ(found.size(), cpu.size());
    gone = 0;
    for (std::size_t j = 0; j < cpu.size() && j < found.size(); ++j) {
      const bool same = found[j].token == cpu[j].token &&
                        found[j].after_count == cpu[j].after_count &&
                        same_bits(found[j].score, cpu[j].score) &&
                        same_bits(found[j].after_sum, cpu[j].after_sum);
      EXPECT_TRUE(same) << "position " << j << ": " << cpu[j].token << " " << cpu[j].score << " "
                        << cpu[j].after_sum << ", found " << found[j].token << " " << found[j].score
                        << " " << found[j].after_sum;
      if (!same) {
        return {gone, others};
      }
      gone += found[j].token >= 0 ? 1 : 0;
    }
  }
  return {gone, others};
}

EvictionRules rules_of(Index kept, Index window, Index protected_recent, bool accumulate,
                       Reduce reduce = Reduce::mean, Index after = 0) {
  EvictionRules rules;
  rules.kept = kept;
  rules.window = window;
  rules.protected_recent = protected_recent;
  rules.accumulate = accumulate;
  rules.reduce = reduce;
  rules.after = after;
  return rules;
}

TEST(DeviceEviction, EqualsTheCpuForEveryWidthAndGroup) {
  unsigned seed = 0;
  for (const Index d : {1, 3, 64, 80, 96, 128, 256}) {
    const KvHead head = head_of(90, d, 2, Keys::normal, ++seed);
    const auto [gone, others] = expect_equal(head, rules_of(20, 5, 8, true, Reduce::mean, 4));
    EXPECT_EQ(gone, 65);
    EXPECT_GT(others, 10);
    expect_equal(head, rules_of(20, 5, 0, false));
  }
  // Groups of one tile and of several, beyond the warps that add up and the teams that compare.
  for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33}) {
    const KvHead head = head_of(60, 8, group, Keys::normal, ++seed);
    for (const Reduce reduce : {Reduce::mean, Reduce::max, Reduce::sum}) {
      expect_equal(head, rules_of(11, 3, 4, true, reduce, 32));
      expect_equal(head, rules_of(11, 3, 0, false, reduce));
    }
  }
}

TEST(DeviceEviction, SizesFromNoneToAll) {
  unsigned seed = 100;
  for (const Index n : {1, 2, 40}) {
    const KvHead head = head_of(n, 5, 2, Keys::normal, ++seed);
    for (const Index window : {Index{0}, Index{1}, Index{7}, n, n + 3, Index{1} << 40}) {
      for (const Index kept : {Index{0}, Index{1}, Index{2}, n - 1, n, Index{1} << 40}) {
        for (const Index share : {0, 1, 2}) {  // nothing, half, all protected
          const auto [gone, others] =
              expect_equal(head, rules_of(std::min(kept, n), window, std::min(kept, n) * share / 2,
                                          true, Reduce::max, 1));
          EXPECT_EQ(gone, std::max<Index>(0, n - window - std::min(kept, n)));
        }
        expect_equal(head, rules_of(std::min(kept, n), window, 0, false, Reduce::sum));
      }
    }
  }
}

EvictionRules with_sinks(EvictionRules rules, Index sink) {
  rules.sink = sink;
  return rules;
}

TEST(DeviceEviction, SinksFromNoneToAll) {
  unsigned seed = 150;
  for (const Index n : {1, 2, 40}) {
    const KvHead head = head_of(n, 5, 3, Keys::normal, ++seed);
    for (const Index sink : {Index{0}, Index{1}, Index{6}, n - 1, n, n + 3, Index{1} << 40}) {
      for (const Index window : {Index{0}, Index{4}, n, Index{1} << 40}) {
        for (const Index kept : {Index{0}, Index{1}, Index{9}}) {
          const Index own = std::min(kept, n);
          const auto [gone, others] = expect_equal(
              head, with_sinks(rules_of(own, window, own / 2, true, Reduce::mean, 4), sink));
          EXPECT_EQ(gone, std::max<Index>(0, n - std::min(window, n) - std::min(sink, n) - own));
          expect_equal(head, with_sinks(rules_of(own, window, 0, false, Reduce::max), sink));
        }
      }
    }
  }
  // Beyond a tile of columns and the threads of a block; ties.
  for (const Keys keys : {Keys::normal, Keys::zero}) {
    const KvHead head = head_of(700, 3, 2, keys, ++seed);
    const auto [gone, others] =
        expect_equal(head, with_sinks(rules_of(60, 12, 20, true, Reduce::mean, 40), 530));
    EXPECT_EQ(gone, 98);
    expect_equal(head, with_sinks(rules_of(300, 0, 0, false), 130));
  }
}

// More tokens than a block has threads, and lists of more than one tile of columns.
TEST(DeviceEviction, LongStreams) {
  const KvHead head = head_of(513, 16, 3, Keys::odd, 7);
  expect_equal(head, rules_of(130, 20, 60, true, Reduce::mean, 40));
  expect_equal(head, rules_of(300, 0, 0, false));
  const KvHead longer = head_of(700, 4, 1, Keys::normal, 8);
  const auto [gone, others] = expect_equal(longer, rules_of(600, 10, 300, true));
  EXPECT_EQ(gone, 90);
  EXPECT_GT(others, 20);
}

// Equal weights everywhere: the latest of those that may go.
TEST(DeviceEviction, TiesGoToTheLatest) {
  for (const Keys keys : {Keys::odd, Keys::equal, Keys::zero}) {
    const KvHead head = head_of(200, 3, 4, keys, 9);
    for (const Index protected_recent : {0, 20, 40}) {
      expect_equal(head, rules_of(40, 6, protected_recent, true, Reduce::mean, 5));
      expect_equal(head, rules_of(40, 6, protected_recent, false, Reduce::max));
    }
  }
  KvHead head = head_of(50, 3, 2, Keys::normal, 10);
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), 50 * 3, 0.0F);
  }
  const HostHead device(HostMachine(), head);
  const std::vector<Eviction> log = device.evictions(rules_of(10, 4, 0, false));
  for (Index j = 0; j < 50; ++j) {
    EXPECT_EQ(log[static_cast<std::size_t>(j)].token, j < 14 ? -1 : j - 4);
  }
}

// Logits far apart and the ends of float32.
TEST(DeviceEviction, Extremes) {
  for (const float factor : {1e-38F, 1e3F, 1e30F}) {
    KvHead head = head_of(80, 4, 2, Keys::normal, 11);
    for (Index i = 0; i < 80 * 4; ++i) {
      head.k.data()[i] *= factor;
    }
    expect_equal(head, rules_of(20, 3, 10, true, Reduce::mean, 6));
    expect_equal(head, rules_of(20, 3, 0, false));
  }
}

void expect_same_view(const Compressed& a, const Compressed& b) {
  ASSERT_EQ(a.held.tokens, b.held.tokens);
  ASSERT_EQ(a.aux_bytes, b.aux_bytes);
  ASSERT_EQ(a.diag, b.diag);
  ASSERT_EQ(a.made.k.rows(), b.made.k.rows());
  ASSERT_EQ(a.made.v.rows(), b.made.v.rows());
  const auto count = static_cast<std::size_t>(a.made.v.rows() * a.made.v.cols());
  ASSERT_TRUE(count == 0 ||
              std::memcmp(a.made.v.data(), b.made.v.data(), count * sizeof(float)) == 0);
}

TEST(DeviceEviction, MethodsHoldTheSameAtEveryPosition) {
  for (const Keys keys : {Keys::normal, Keys::odd}) {
    const KvHead head = head_of(120, 8, 3, keys, 12);
    for (const auto order : kOrders) {
      const HostHead device(HostMachine(order), head);
      for (const Method& m : {method_h2o(), method_cam(), method_tova()}) {
        for (const auto& [sink, recent] :
             {std::pair<Index, Index>{0, 9}, {16, 0}, {16, 9}, {100, 30}, {200, 9}}) {
          for (const Given& given :
               {Given{{"tokens", "0"}}, Given{{"tokens", "1"}}, Given{{"tokens", "30"}},
                Given{{"tokens", "30"}, {"reduce", "max"}}, Given{{"tokens", "500"}}}) {
            const Params params(m.info.name, m.info.params, given);
            const auto a = m.open_stream(task_of(head, recent, nullptr, sink), params);
            const auto b = m.open_stream(task_of(head, recent, &device, sink), params);
            for (Index j = 0; j < head.n(); ++j) {
              a->append(j, leaving(j, recent, sink));
              b->append(j, leaving(j, recent, sink));
              expect_same_view(a->view(), b->view());
              if (HasFatalFailure()) {
                FAIL() << m.info.name << " sink " << sink << " recent " << recent << " position "
                       << j;
              }
            }
          }
        }
      }
    }
  }
}

TEST(DeviceEviction, RefusesAnotherWindowThanItsRules) {
  const KvHead head = head_of(10, 2, 1, Keys::normal, 13);
  EvictingCache cache(task_of(head, 3, nullptr), rules_of(2, 3, 0, true));
  EXPECT_THROW(cache.step(0, 0), std::logic_error);
  EvictingCache sinks(task_of(head, 0, nullptr, 2), with_sinks(rules_of(2, 0, 0, true), 2));
  sinks.step(0, -1);
  EXPECT_THROW(sinks.step(1, 1), std::logic_error);
}

}  // namespace
}  // namespace kvbench
