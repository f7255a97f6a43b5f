// bumblebee-stream as one block kernel against the CPU's: the same tokens retained at every
// position.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "algorithms/contract.hpp"
#include "attention/device_on.hpp"
#include "make_head.hpp"

namespace kvbench {

Method method_bumblebee_stream();

namespace {

using Given = std::map<std::string, std::string>;
using HostHead = DeviceHeadOn<HostMachine>;

constexpr HostMachine::Order kOrders[] = {HostMachine::Order::forward,
                                          HostMachine::Order::backward};
constexpr const char* kSimilarities[] = {"relu", "one-plus", "abs"};

KvHead head_of(Index n, Index d, Index group, unsigned seed, bool odd) {
  HeadShape shape;
  shape.n = shape.nq = n;
  shape.d = d;
  shape.dv = 2;
  shape.group = group;
  KvHead head = make_head(shape, seed);
  if (odd) {
    head.k = odd_keys(n, d, seed);
  }
  return head;
}

std::unique_ptr<StreamCache> open(const KvHead& head, Index recent, const Given& given,
                                  const DeviceHead* device, Index sink = 0) {
  const Method m = method_bumblebee_stream();
  return m.open_stream({head, recent, {}, Rng(0, {"p", 0, 0}, m.info.name), device, sink},
                       Params(m.info.name, m.info.params, given));
}

// Returns how often another than the newcomer left.
int expect_equal(const KvHead& head, Index recent, const Given& given, Index sink = 0) {
  std::string text;
  for (const auto& [name, value] : given) {
    text += " " + name + "=" + value;
  }
  SCOPED_TRACE(testing::Message() << "n " << head.n() << " d " << head.d() << " group "
                                  << head.group() << " sink " << sink << " recent " << recent
                                  << text);
  int others = 0;
  for (const auto order : kOrders) {
    const HostHead device(HostMachine(order), head);
    const auto cpu = open(head, recent, given, nullptr, sink);
    const auto other = open(head, recent, given, &device, sink);
    others = 0;
    for (Index j = 0; j < head.n(); ++j) {
      const Index leaving = j - recent < sink ? -1 : j - recent;
      const std::size_t held = cpu->view().held.tokens.size();
      cpu->append(j, leaving);
      other->append(j, leaving);
      const Compressed a = cpu->view();
      const Compressed b = other->view();
      EXPECT_EQ(a.held.tokens, b.held.tokens) << "position " << j;
      EXPECT_EQ(a.aux_bytes, b.aux_bytes);
      if (testing::Test::HasFailure()) {
        return others;
      }
      others +=
          !a.held.tokens.empty() && a.held.tokens.size() == held && a.held.tokens.back() == leaving
              ? 1
              : 0;
    }
  }
  return others;
}

TEST(DeviceRetained, EqualsTheCpuForEveryObjective) {
  unsigned seed = 0;
  int others = 0;
  for (const char* sim : kSimilarities) {
    for (const char* lambda : {"0", "0.001", "0.3", "0.5", "0.9", "1"}) {
      for (const char* reduce : {"mean", "max", "sum"}) {
        for (const bool odd : {false, true}) {
          others += expect_equal(
              head_of(80, 4, 3, ++seed, odd), 4,
              {{"sim", sim}, {"lambda", lambda}, {"reduce", reduce}, {"tokens", "20"}});
        }
      }
    }
  }
  EXPECT_GT(others, 1000);  // of 108 streams of 56 departures
}

TEST(DeviceRetained, EveryWidthAndGroup) {
  unsigned seed = 200;
  for (const Index d : {1, 3, 64, 80, 96, 128, 256}) {
    for (const char* lambda : {"0.4", "1"}) {
      expect_equal(head_of(70, d, 2, ++seed, false), 3, {{"lambda", lambda}, {"tokens", "25"}});
    }
  }
  for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33}) {
    for (const char* lambda : {"0", "0.5"}) {
      expect_equal(head_of(50, 6, group, ++seed, true), 2,
                   {{"lambda", lambda}, {"tokens", "16"}, {"sim", "abs"}});
    }
  }
}

TEST(DeviceRetained, SizesFromNoneToAll) {
  unsigned seed = 300;
  for (const Index n : {1, 2, 40}) {
    const KvHead head = head_of(n, 5, 2, ++seed, true);
    for (const Index recent : {Index{0}, Index{1}, Index{7}, n, n + 5}) {
      for (const Index tau : {Index{0}, Index{1}, Index{2}, n - 1, n, 2 * n}) {
        for (const char* lambda : {"0", "0.5", "1"}) {
          expect_equal(head, recent, {{"lambda", lambda}, {"tokens", std::to_string(tau)}});
        }
      }
    }
  }
}

TEST(DeviceRetained, SinksFromNoneToAll) {
  unsigned seed = 350;
  for (const Index n : {1, 2, 40}) {
    const KvHead head = head_of(n, 5, 3, ++seed, n == 40);
    for (const Index sink : {Index{0}, Index{1}, Index{6}, n - 1, n, n + 3, Index{1} << 40}) {
      for (const Index recent : {Index{0}, Index{4}, n, Index{1} << 40}) {
        for (const Index tau : {Index{0}, Index{1}, Index{9}}) {
          for (const char* lambda : {"0", "0.5", "1"}) {
            expect_equal(head, recent, {{"lambda", lambda}, {"tokens", std::to_string(tau)}}, sink);
          }
        }
      }
    }
  }
  // Beyond a tile of columns, beyond the threads of a block, and members that end one column into
  // a tile.
  int others = 0;
  for (const auto& [n, sink, tau] : {std::tuple<Index, Index, Index>{400, 130, 200},
                                     {700, 530, 100},
                                     {300, 16, 112},
                                     {300, 128, 128},
                                     {300, 1, 127}}) {
    for (const char* lambda : {"0", "0.4"}) {
      for (const char* sim : kSimilarities) {
        ++seed;
        others +=
            expect_equal(head_of(n, 3, 2, seed, seed % 2 == 0), 5,
                         {{"sim", sim}, {"lambda", lambda}, {"tokens", std::to_string(tau)}}, sink);
      }
    }
  }
  EXPECT_GT(others, 300);
}

// More members than a tile has columns and than a block has threads; many that lose their nearest
// neighbour at once.
TEST(DeviceRetained, LongStreams) {
  const KvHead odd = head_of(513, 3, 2, 400, true);
  for (const char* sim : kSimilarities) {
    expect_equal(odd, 10, {{"sim", sim}, {"tokens", "200"}, {"lambda", "0.5"}});
    expect_equal(odd, 0, {{"sim", sim}, {"tokens", "140"}, {"lambda", "1"}});
  }
  EXPECT_GT(expect_equal(head_of(640, 2, 1, 401, false), 5, {{"tokens", "530"}, {"lambda", "1"}}),
            30);
}

// Keys of few directions: equal losses, equal scores, and stars of neighbours around one key.
TEST(DeviceRetained, Ties) {
  for (const Index directions : {1, 2, 5}) {
    KvHead head = head_of(150, 4, 2, 500, false);
    for (Index i = 0; i < 150; ++i) {
      std::copy_n(head.k.row(i % directions), 4, head.k.row(i));
    }
    for (const char* sim : kSimilarities) {
      for (const char* lambda : {"0", "0.5", "1"}) {
        expect_equal(head, 3, {{"sim", sim}, {"lambda", lambda}, {"tokens", "30"}});
      }
    }
  }
  KvHead head = head_of(60, 4, 2, 501, false);
  std::fill_n(head.k.data(), 60 * 4, 0.0F);
  for (const char* lambda : {"0", "0.5", "1"}) {
    expect_equal(head, 0, {{"lambda", lambda}, {"tokens", "9"}});
  }
  const HostHead device(HostMachine(), head);
  const std::vector<Index> log = device.departures({9, 5, 1.0, Similarity::relu, Reduce::mean});
  ASSERT_EQ(log.size(), 60U);
  for (Index j = 0; j < 60; ++j) {  // nothing is lost by any: the earliest leaves
    EXPECT_EQ(log[static_cast<std::size_t>(j)], j < 14 ? -1 : j - 14);
  }
}

TEST(DeviceRetained, Extremes) {
  for (const float factor : {1e-38F, 1e3F, 1e30F}) {
    KvHead head = head_of(90, 4, 2, 600, false);
    for (Index i = 0; i < 90 * 4; ++i) {
      head.k.data()[i] *= factor;
    }
    for (const char* lambda : {"0", "0.5", "1"}) {
      expect_equal(head, 3, {{"lambda", lambda}, {"tokens", "20"}});
    }
  }
}

// The power is the CPU's, unless it has no say: only a device evaluates every member.
TEST(DeviceRetained, PowerStaysOnTheCpu) {
  const KvHead head = head_of(80, 4, 2, 700, false);
  const HostHead device(HostMachine(), head);
  for (const char* phi : {"log", "power"}) {
    for (const char* lambda : {"0", "0.5", "1"}) {
      const Given given = {{"phi", phi}, {"lambda", lambda}, {"tokens", "20"}};
      expect_equal(head, 2, given);
      const auto cache = open(head, 2, given, &device);
      const auto cpu = open(head, 2, given, nullptr);
      for (Index j = 0; j < 80; ++j) {
        cache->append(j, j < 2 ? -1 : j - 2);
        cpu->append(j, j < 2 ? -1 : j - 2);
      }
      const std::string all = std::to_string(58 * 21);
      const bool stays = std::string(phi) == "power" && std::string(lambda) == "0.5";
      EXPECT_EQ(cache->view().diag[0].second == all, !stays) << phi << " " << lambda;
      EXPECT_NE(cpu->view().diag[0].second, all);
    }
  }
}

}  // namespace
}  // namespace kvbench
