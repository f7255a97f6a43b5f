// Streams of a device against the CPU's: every decision and score, to the bit.
#include <gtest/gtest.h>

#include "attention/backend.hpp"
#include "gpu/operations.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_streams {
namespace {

enum class Keys { normal, odd, equal, zero };

KvHead head_of(Index n, Index d, Index group, Keys keys, unsigned seed) {
  KvHead head = make_head({.n = n, .nq = n, .d = d, .dv = 3, .group = group}, seed);
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

const gpu::Device kDevice(0, std::size_t{1} << 20);

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

struct Gone {
  Index all = 0;
  Index not_oldest = 0;
};

Gone expect_equal_in(const KvHead& head, const EvictionRules& rules) {
  SCOPED_TRACE(testing::Message() << name(head.precision) << " n " << head.n() << " d " << head.d()
                                  << " group " << head.group() << " kept " << rules.kept
                                  << " window " << rules.window << " protected "
                                  << rules.protected_recent << " sink " << rules.sink);
  const auto cpu = cpu_backend().evictions(head, rules);
  const gpu::DeviceHead on_device(kDevice, head);
  const auto found = gpu::evictions(on_device, rules);
  Gone gone;
  Index oldest = rules.sink;
  for (Index j = 0; j < head.n(); ++j) {
    const Eviction a = cpu->step(j);
    const Eviction b = found->step(j);
    const bool same = a.token == b.token && a.after_count == b.after_count &&
                      same_bits(a.score, b.score) && same_bits(a.after_sum, b.after_sum);
    EXPECT_TRUE(same) << "position " << j << ": " << a.token << " " << a.score << " " << a.after_sum
                      << ", found " << b.token << " " << b.score << " " << b.after_sum;
    if (!same) {
      break;
    }
    EXPECT_TRUE(a.token < 0 || a.token >= rules.sink);
    gone.all += a.token >= 0 ? 1 : 0;
    gone.not_oldest += a.token > oldest ? 1 : 0;
    oldest += a.token == oldest ? 1 : 0;
  }
  return gone;
}

KvHead single_of(const KvHead& head) {
  KvHead single = head;
  single.precision = Precision::float32;
  return single;
}

KvHead with_sink_logits(KvHead head) {
  for (Index g = 0; g < head.group(); ++g) {
    head.sink_logit.push_back(0.5F * static_cast<float>(g));
  }
  return head;
}

// In both precisions; what went in float64.
Gone expect_equal(const KvHead& head, const EvictionRules& rules) {
  expect_equal_in(single_of(head), rules);
  if (head.n() <= 60) {
    expect_equal_in(with_sink_logits(head), rules);
  }
  return expect_equal_in(head, rules);
}

EvictionRules rules_of(Index kept, Index window, Index protected_recent, bool accumulate,
                       Reduce reduce = Reduce::mean, Index after = 0, Index sink = 0) {
  return {kept, window, protected_recent, accumulate, reduce, after, sink};
}

class GpuEvictions : public testing_gpu::OnDevice {};

TEST_F(GpuEvictions, EqualTheCpusForEveryWidthAndGroup) {
  unsigned seed = 0;
  for (const Index d : {1, 3, 64, 80, 128}) {
    const KvHead head = head_of(60, d, 2, Keys::normal, ++seed);
    const Gone gone = expect_equal(head, rules_of(20, 5, 8, true, Reduce::mean, 4));
    EXPECT_EQ(gone.all, 35);
    EXPECT_GT(gone.not_oldest, 5);
    expect_equal(head, rules_of(20, 5, 0, false));
  }
  for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    const KvHead head = head_of(40, 8, group, Keys::normal, ++seed);
    for (const Reduce reduce : {Reduce::mean, Reduce::max, Reduce::sum}) {
      expect_equal(head, rules_of(11, 3, 4, true, reduce, 32));
      expect_equal(head, rules_of(11, 3, 0, false, reduce));
    }
  }
}

TEST_F(GpuEvictions, SizesFromNoneToAll) {
  unsigned seed = 100;
  for (const Index n : {1, 2, 30}) {
    const KvHead head = head_of(n, 5, 2, Keys::normal, ++seed);
    for (const Index window : {Index{0}, Index{1}, Index{7}, n, Index{1} << 40}) {
      for (const Index kept : {Index{0}, Index{1}, Index{2}, n - 1, n}) {
        for (const Index share : {0, 1, 2}) {  // nothing, half, all protected
          const Gone gone = expect_equal(
              head, rules_of(kept, window, kept * share / 2, share != 1, Reduce::max, 1));
          EXPECT_EQ(gone.all, std::max<Index>(0, n - std::min(window, n) - kept));
        }
      }
    }
  }
}

TEST_F(GpuEvictions, SinksFromNoneToAll) {
  unsigned seed = 150;
  for (const Index n : {1, 30}) {
    const KvHead head = head_of(n, 5, 3, Keys::normal, ++seed);
    for (const Index sink : {Index{1}, Index{6}, n - 1, n, Index{1} << 40}) {
      for (const Index window : {Index{0}, Index{4}, n}) {
        for (const Index kept : {Index{0}, Index{1}, std::min<Index>(9, n)}) {
          const Gone gone =
              expect_equal(head, rules_of(kept, window, kept / 2, true, Reduce::mean, 4, sink));
          EXPECT_EQ(gone.all,
                    std::max<Index>(0, n - std::min(window, n) - std::min(sink, n) - kept));
        }
      }
    }
  }
}

// More tokens than a block has threads.
TEST_F(GpuEvictions, LongStreams) {
  const KvHead head = head_of(560, 4, 2, Keys::odd, 7);
  const Gone gone = expect_equal(head, rules_of(520, 4, 260, true, Reduce::mean, 40, 3));
  EXPECT_EQ(gone.all, 33);
  // Threads have several tokens each, and the largest logits are those of a thread's first.
  KvHead heavy = head_of(560, 4, 2, Keys::normal, 8);
  for (Index i = 0; i < 16 * 4; ++i) {
    heavy.k.data()[i] *= 5.0F;
  }
  expect_equal(heavy, rules_of(520, 4, 0, false, Reduce::mean, 40, 16));
}

// Equal weights everywhere: the latest of those that may go.
TEST_F(GpuEvictions, TiesGoToTheLatest) {
  for (const Keys keys : {Keys::odd, Keys::equal, Keys::zero}) {
    const KvHead head = head_of(100, 3, 4, keys, 9);
    for (const Index protected_recent : {0, 20, 40}) {
      expect_equal(head, rules_of(40, 6, protected_recent, true, Reduce::mean, 5));
      expect_equal(head, rules_of(40, 6, protected_recent, false, Reduce::max));
    }
  }
  KvHead head = head_of(50, 3, 2, Keys::normal, 10);
  for (Matrix& q : head.q) {
    std::fill_n(q.data(), 50 * 3, 0.0F);
  }
  const auto found = gpu::evictions(gpu::DeviceHead(kDevice, head), rules_of(10, 4, 0, false));
  for (Index j = 0; j < 50; ++j) {
    EXPECT_EQ(found->step(j).token, j < 14 ? -1 : j - 4);
  }
}

// Logits far apart and the ends of float32.
TEST_F(GpuEvictions, Extremes) {
  for (const float factor : {1e-38F, 1e3F, 1e30F}) {
    KvHead head = head_of(60, 4, 2, Keys::normal, 11);
    for (Index i = 0; i < 60 * 4; ++i) {
      head.k.data()[i] *= factor;
    }
    expect_equal(head, rules_of(20, 3, 10, true, Reduce::mean, 6));
    expect_equal(head, rules_of(20, 3, 0, false));
  }
}

// Returns how often another than the newcomer left.
Index expect_equal_in(const KvHead& head, const RetentionRules& rules) {
  SCOPED_TRACE(testing::Message() << name(head.precision) << " n " << head.n() << " d " << head.d()
                                  << " group " << head.group() << " kept " << rules.kept
                                  << " window " << rules.window << " sink " << rules.sink
                                  << " lambda " << rules.lambda << " kind "
                                  << static_cast<int>(rules.kind));
  const auto cpu = cpu_backend().retention(head, rules);
  const gpu::DeviceHead on_device(kDevice, head);
  const auto found = gpu::retention(on_device, rules);
  Index others = 0;
  for (Index j = 0; j < head.n(); ++j) {
    const Departure a = cpu->step(j);
    const Departure b = found->step(j);
    EXPECT_EQ(a.token, b.token) << "position " << j;
    EXPECT_GE(b.evaluations, a.evaluations > 0 ? 1 : 0);
    EXPECT_LE(b.evaluations, rules.kept + 1);
    if (testing::Test::HasFailure()) {
      break;
    }
    others += a.token >= 0 && a.token != j - rules.window ? 1 : 0;
  }
  return others;
}

// In both precisions; what left in float64.
Index expect_equal(const KvHead& head, const RetentionRules& rules) {
  expect_equal_in(single_of(head), rules);
  if (head.n() <= 60) {
    expect_equal_in(with_sink_logits(head), rules);
  }
  return expect_equal_in(head, rules);
}

RetentionRules retain(Index kept, Index window, double lambda, Similarity kind = Similarity::relu,
                      Reduce reduce = Reduce::mean, Index sink = 0) {
  return {kept, window, lambda, kind, reduce, sink, {}};
}

constexpr Similarity kKinds[] = {Similarity::relu, Similarity::one_plus, Similarity::absolute};

class GpuRetention : public testing_gpu::OnDevice {};

TEST_F(GpuRetention, EqualsTheCpusForEveryObjective) {
  unsigned seed = 0;
  Index others = 0;
  for (const Similarity kind : kKinds) {
    for (const double lambda : {0.0, 0.001, 0.3, 0.9, 1.0}) {
      for (const Reduce reduce : {Reduce::mean, Reduce::max, Reduce::sum}) {
        const Keys keys = ++seed % 2 == 0 ? Keys::odd : Keys::normal;
        others += expect_equal(head_of(50, 4, 3, keys, seed), retain(16, 4, lambda, kind, reduce));
      }
    }
  }
  EXPECT_GT(others, 300);  // of 45 streams of 30 departures
}

TEST_F(GpuRetention, EveryWidthAndGroup) {
  unsigned seed = 200;
  for (const Index d : {1, 3, 64, 80, 128}) {
    for (const double lambda : {0.4, 1.0}) {
      expect_equal(head_of(50, d, 2, Keys::normal, ++seed), retain(25, 3, lambda));
    }
  }
  for (const Index group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    for (const double lambda : {0.0, 0.5}) {
      expect_equal(head_of(40, 6, group, Keys::odd, ++seed),
                   retain(16, 2, lambda, Similarity::absolute));
    }
  }
}

TEST_F(GpuRetention, SizesAndSinksFromNoneToAll) {
  unsigned seed = 300;
  for (const Index n : {1, 2, 30}) {
    const KvHead head = head_of(n, 5, 2, Keys::odd, ++seed);
    for (const Index window : {Index{0}, Index{7}, n, Index{1} << 40}) {
      for (const Index kept : {Index{0}, Index{1}, Index{2}, n}) {
        for (const Index sink : {Index{0}, Index{5}, n, Index{1} << 40}) {
          expect_equal(head, retain(kept, window, 0.5, Similarity::one_plus, Reduce::max, sink));
        }
        expect_equal(head, retain(kept, window, 1.0, Similarity::relu, Reduce::mean, 5));
      }
    }
  }
}

// Equal keys, zero keys, zero queries; more members than a block has threads; the ends of float32.
TEST_F(GpuRetention, TiesLongStreamsAndExtremes) {
  for (const Keys keys : {Keys::equal, Keys::zero, Keys::odd}) {
    KvHead head = head_of(80, 3, 2, keys, 9);
    for (const Similarity kind : kKinds) {
      expect_equal(head, retain(30, 4, 0.5, kind, Reduce::mean, 3));
      expect_equal(head, retain(30, 4, 1.0, kind));
    }
    for (Matrix& q : head.q) {
      std::fill_n(q.data(), q.rows() * q.cols(), 0.0F);
    }
    expect_equal(head, retain(30, 4, 0.5));
  }
  expect_equal(head_of(560, 4, 2, Keys::odd, 7),
               retain(520, 4, 0.3, Similarity::relu, Reduce::mean, 3));
  for (const float factor : {1e-38F, 1e30F}) {
    KvHead head = head_of(50, 4, 2, Keys::normal, 11);
    for (Index i = 0; i < 50 * 4; ++i) {
      head.k.data()[i] *= factor;
    }
    expect_equal(head, retain(16, 3, 0.3));
  }
}

// Another phi than the logarithm: the CPU's stream, its evaluations too.
TEST_F(GpuRetention, PowerIsTheCpus) {
  const KvHead head = head_of(50, 4, 2, Keys::normal, 12);
  const gpu::DeviceHead on_device(kDevice, head);
  RetentionRules rules = retain(16, 3, 0.3);
  rules.phi = ConcavePhi::power(0.04, 1.0);
  const auto cpu = cpu_backend().retention(head, rules);
  const auto found = gpu::retention(on_device, rules);
  Index gone = 0;
  for (Index j = 0; j < 50; ++j) {
    const Departure a = cpu->step(j);
    const Departure b = found->step(j);
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.evaluations, b.evaluations);
    gone += a.token >= 0 ? 1 : 0;
  }
  EXPECT_EQ(gone, 31);
  rules.lambda = 1.0;
  expect_equal(head, rules);
}

}  // namespace
}  // namespace kvbench::test_gpu_streams
