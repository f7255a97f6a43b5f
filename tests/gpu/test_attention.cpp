// Attention on a device, against the functions of the CPU, which tests/test_attention.cpp and
// tests/test_query_block.cpp compare with the definitions.
#include "attention/estimator.hpp"
#include "attention/scores.hpp"
#include "attention/truth.hpp"
#include "gpu/device.hpp"
#include "gpu/operations.cuh"
#include "make_head.hpp"
#include "on_device.hpp"

namespace kvbench::test_gpu_attention {
namespace {

// Sums of some hundred terms in float64, each in an order of its own: some 1e-14 of what they sum.
// Logits, weights and the values' sums of 256 tokens have the CPU's bits, in float32 too.
constexpr double kTolerance = 1e-12;
constexpr Precision kPrecisions[] = {Precision::float32, Precision::float64};
constexpr std::size_t kAmple = std::size_t{1} << 30;

// n, nq, d, dv, group: widths around a step of 16, 64 or 128, slabs of 256 tokens, tiles of 64
// queries.
const HeadShape kShapes[] = {{1, 1, 8, 8, 1},      {5, 3, 1, 1, 9},      {70, 70, 33, 5, 3},
                             {64, 32, 32, 64, 1},  {257, 33, 40, 65, 2}, {300, 45, 96, 130, 4},
                             {530, 64, 128, 16, 2}};

void expect_near(std::span<const double> got, std::span<const double> expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double scale = std::max(1.0, std::abs(expected[i]));
    ASSERT_TRUE(std::abs(got[i] - expected[i]) <= kTolerance * scale)
        << "at " << i << ": " << got[i] << " and " << expected[i];
  }
}

std::span<const double> all(const MatrixD& m) {
  return {m.data(), static_cast<std::size_t>(m.rows() * m.cols())};
}

void expect_same_bits(std::span<const double> a, std::span<const double> b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_TRUE(a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Every second head has sink logits, every third a window.
void bound(KvHead& head, unsigned seed) {
  for (Index g = 0; seed % 2 == 0 && g < head.group(); ++g) {
    head.sink_logit.push_back(1.5F - static_cast<float>(g));
  }
  head.window = seed % 3 == 0 ? head.n() / 3 + 1 : 0;
}

gpu::DeviceHead head_on_device(const KvHead& head, std::size_t scratch = kAmple) {
  return {gpu::Device(0, scratch), head};
}

std::vector<Index> some_positions(const KvHead& head) {
  std::vector<Index> out = positions(head.q_start(), head.n());
  std::swap(out.front(), out.back());
  out.push_back(out[out.size() / 2]);  // in any order, and more than once
  return out;
}

class GpuAttention : public testing_gpu::OnDevice {};

TEST_F(GpuAttention, ExactAttentionIsTheCpus) {
  for (unsigned seed = 1; const Precision precision : kPrecisions) {
    for (const HeadShape& shape : kShapes) {
      KvHead head = make_head(shape, ++seed);
      bound(head, seed);
      head.precision = precision;
      const gpu::DeviceHead there = head_on_device(head);
      const std::vector<Index> at = some_positions(head);
      for (Index g = 0; g < head.group(); ++g) {
        const ExactAttention got = gpu::exact_attention(there, g, at);
        const ExactAttention expected = exact_attention(head, g, at, 1);
        expect_near(all(got.output), all(expected.output));
        expect_near(got.log_z, expected.log_z);
        expect_near(got.p_norm, expected.p_norm);
        expect_near(got.mass, expected.mass);
        EXPECT_EQ(got.noticed, expected.noticed);
        expect_near(all(gpu::exact_probabilities(there, g, at)),
                    all(exact_probabilities(head, g, at)));
      }
    }
  }
}

TEST_F(GpuAttention, SumsAreTheCpus) {
  for (unsigned seed = 20; const Precision precision : kPrecisions) {
    for (const HeadShape& shape : kShapes) {
      KvHead head = make_head(shape, ++seed);
      bound(head, seed);
      head.precision = precision;
      const gpu::DeviceHead there = head_on_device(head);
      const Index n = head.n();
      for (const Range queries : {Range{0, n}, Range{n - 1, n}, Range{n / 2, n - n / 4},
                                  Range{n, n}, Range{0, head.q_start()}}) {
        const auto got = gpu::attention_sums(there, queries);
        const auto expected = attention_sums(head, queries);
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t g = 0; g < got.size(); ++g) {
          expect_near(got[g], expected[g]);
        }
      }
    }
  }
}

TEST_F(GpuAttention, BitsDependNeitherOnTheRunNorOnScratch) {
  KvHead head = make_head({300, 70, 24, 10, 2}, 9);
  bound(head, 6);
  const std::vector<Index> at = some_positions(head);
  const gpu::DeviceHead ample = head_on_device(head);
  const ExactAttention expected = gpu::exact_attention(ample, 1, at);
  const MatrixD p = gpu::exact_probabilities(ample, 1, at);
  const auto sums = gpu::attention_sums(ample, {240, 300});
  for (const std::size_t scratch :
       {kAmple, std::size_t{1}, std::size_t{7000}, std::size_t{90000}}) {
    const gpu::DeviceHead there = head_on_device(head, scratch);
    const ExactAttention got = gpu::exact_attention(there, 1, at);
    expect_same_bits(all(got.output), all(expected.output));
    expect_same_bits(got.log_z, expected.log_z);
    expect_same_bits(got.p_norm, expected.p_norm);
    expect_same_bits(got.mass, expected.mass);
    EXPECT_EQ(got.noticed, expected.noticed);
    expect_same_bits(all(gpu::exact_probabilities(there, 1, at)), all(p));
    const auto again = gpu::attention_sums(there, {240, 300});
    for (std::size_t g = 0; g < sums.size(); ++g) {
      expect_same_bits(again[g], sums[g]);
    }
  }
}

// ------------------------------------------------------------------------- sets of weighted rows

// Queries and what they attend to, of every kind of set.
struct ManySums {
  KvHead head;
  Matrix made_k, made_v;
  std::vector<Index> rows, first;
  std::vector<float> weights;
  std::vector<MatrixD> queries;
  std::vector<std::vector<WeightedRows>> sets;

  ManySums(const HeadShape& shape, std::size_t count, unsigned seed)
      : head(make_head(shape, seed)) {
    bound(head, seed);
    const KvHead made = make_head({40, 1, shape.d, shape.dv, 1}, seed + 1);
    made_k = made.k;
    made_v = made.v;
    std::mt19937 random(seed);
    const Index n = head.n();
    rows = positions(0, n);
    first = positions(0, 40);
    for (Index i = 0; i < n; ++i) {
      const auto dice = random() % 8;
      weights.push_back(dice == 0 ? 0.0F : 0.25F * static_cast<float>(dice));
    }
    const auto some = [&](Index limit) {
      const auto begin = static_cast<std::size_t>(random() % static_cast<unsigned>(limit + 1));
      const auto size = random() % (static_cast<std::size_t>(limit) - begin + 1);
      return std::pair{begin, size};
    };
    for (std::size_t i = 0; i < count; ++i) {
      const Index m = 1 + static_cast<Index>(random() % static_cast<unsigned>(head.nq()));
      queries.push_back(scaled_queries(head, static_cast<Index>(i) % head.group(), m));
      const auto [b0, c0] = some(n);
      const auto [b1, c1] = some(n);
      const auto [b2, c2] = some(40);
      const std::span<const Index> of_head(rows);
      const std::span<const Index> of_made(first);
      const std::span<const float> w(weights);
      sets.push_back(
          {causal_rows(head, of_head.subspan(b0, c0), m),
           {head.k,
            head.v,
            of_head.subspan(b1, c1),
            w.subspan(b1, c1),
            1.0F,
            i % 2 == 0 ? SoftmaxPart::both : SoftmaxPart::numerator,
            {},
            true},
           {made_k, made_v, of_made.subspan(b2, c2), {}, 0.5F, SoftmaxPart::both, {}, false},
           {made_k, made_v, of_made.subspan(b2, c2), {}, 2.0F, SoftmaxPart::both, 20, false, 15},
           {head.k,
            {},
            of_head.first(i % 3 == 0 ? 0U : 1U),
            {},
            3.0F,
            SoftmaxPart::denominator,
            {},
            true},
           {made_k, {}, of_made.subspan(b2, c2), {}, 2.0F, SoftmaxPart::denominator, {}, false},
           {head.k, head.v, of_head.first(1), w.first(1), 1.0F, SoftmaxPart::both, {}, true}});
    }
  }

  std::vector<SoftmaxSums> sums() const {
    std::vector<SoftmaxSums> out;
    for (const MatrixD& q : queries) {
      const std::vector<float> sinks(head.sink_logit.empty() ? 0 : q.rows(), 0.5F);
      out.emplace_back(q, head.dv(), head.precision, sinks);
    }
    return out;
  }
};

void expect_near(const SoftmaxSums& got, const SoftmaxSums& expected) {
  const MatrixD a = got.output();
  const MatrixD b = expected.output();
  const std::vector<double> x = got.log_denominator();
  const std::vector<double> y = expected.log_denominator();
  for (std::size_t r = 0; r < x.size(); ++r) {
    if (std::isfinite(y[r])) {
      expect_near(std::span(&x[r], 1), std::span(&y[r], 1));
      const std::size_t dv = static_cast<std::size_t>(a.cols());
      expect_near({a.row(static_cast<Index>(r)), dv}, {b.row(static_cast<Index>(r)), dv});
    } else {
      ASSERT_EQ(x[r], y[r]);
    }
  }
}

TEST_F(GpuAttention, SetsAreTheCpus) {
  for (unsigned seed = 40; const Precision precision : kPrecisions) {
    for (const HeadShape& shape : kShapes) {
      ManySums many(shape, 6, ++seed);
      many.head.precision = precision;
      const gpu::DeviceHead there = head_on_device(many.head);
      std::vector<SoftmaxSums> got = many.sums();
      std::vector<SoftmaxSums> expected = many.sums();
      gpu::add_rows_to(there, got, many.sets);
      for (std::size_t i = 0; i < got.size(); ++i) {
        for (const WeightedRows& set : many.sets[i]) {
          expected[i].add(set);
        }
        expect_near(got[i], expected[i]);
      }
    }
  }
}

TEST_F(GpuAttention, BitsOfSetsDependNeitherOnTheRunNorOnScratch) {
  const ManySums many({280, 40, 20, 10, 3}, 8, 77);
  std::vector<SoftmaxSums> expected = many.sums();
  gpu::add_rows_to(head_on_device(many.head), expected, many.sets);
  for (const std::size_t scratch :
       {kAmple, std::size_t{1}, std::size_t{5000}, std::size_t{60000}}) {
    std::vector<SoftmaxSums> got = many.sums();
    gpu::add_rows_to(head_on_device(many.head, scratch), got, many.sets);
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_same_bits(all(got[i].output()), all(expected[i].output()));
      expect_same_bits(got[i].log_denominator(), expected[i].log_denominator());
    }
  }
}

TEST_F(GpuAttention, NothingIsAddedByNothing) {
  const KvHead head = make_head({20, 5, 4, 4, 1}, 6);
  const gpu::DeviceHead there = head_on_device(head);
  gpu::add_rows_to(there, {}, {});
  const MatrixD queries = scaled_queries(head, 0, 5);
  std::vector<SoftmaxSums> sums{SoftmaxSums(queries, 4, head.precision)};
  const std::vector<Index> rows = positions(0, 20);
  const std::vector<WeightedRows> sets{
      {head.k, head.v, {}, {}, 1.0F, SoftmaxPart::both, {}, true},
      {head.k, head.v, rows, {}, 0.0F, SoftmaxPart::both, {}, true},
      {head.k, head.v, rows, {}, 1.0F, SoftmaxPart::both, -10, true}};  // no query sees a row
  gpu::add_rows_to(there, sums, {&sets, 1});
  const std::vector<double> log_z = sums[0].log_denominator();
  EXPECT_EQ(log_z.size(), 5U);
  for (const double x : log_z) {
    EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
  }
}

TEST_F(GpuAttention, MemoryKeepsToTheScratch) {
  const ManySums many({300, 60, 16, 16, 2}, 16, 8);
  constexpr std::size_t kScratch = 20000;
  const gpu::DeviceHead there = head_on_device(many.head, kScratch);
  const std::size_t before = testing_gpu::used_bytes();
  testing_gpu::forget_peak();
  gpu::exact_attention(there, 0, positions(240, 300));
  gpu::attention_sums(there, {240, 300});
  std::vector<SoftmaxSums> sums = many.sums();
  gpu::add_rows_to(there, sums, many.sets);
  EXPECT_LE(testing_gpu::peak_bytes() - before,
            kScratchArrays * kScratch + device_job_bytes(300, 16, 2) + testing_gpu::kRounding);
}

}  // namespace
}  // namespace kvbench::test_gpu_attention
