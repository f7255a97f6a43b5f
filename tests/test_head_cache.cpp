// From what a method returned to an entry of a caches file and back: attention, memory and kept
// tokens stay what they were; entries that no method may hold are refused.

#include "caches_files.hpp"
#include "held_sets.hpp"
#include "make_head.hpp"
#include "metrics/memory.hpp"
#include "replay/compressed_rows.hpp"
#include "replay/head_cache.hpp"
#include "replay/job.hpp"
#include "replay_run.hpp"

namespace kvbench::test_head_cache {
namespace {

using testing_caches::random_cache;
using testing_caches::random_rows;
using testing_replay::expect_refusal;

constexpr Index kTokens = 40, kBegin = 5, kEnd = 30;  // of the middle

KvHead rounded_head(DType dtype, unsigned seed) {
  return make_rounded_head({.n = kTokens, .nq = 6, .d = 7, .dv = 5, .dtype = dtype}, seed);
}

// How the random results weigh their entries.
enum class Weights { one, common, each, some_zero };

struct Kind {
  bool held = true, made = false, denominator = false, same_keys = false;
  Weights weights = Weights::one;
  bool payload = false, quantized = false;
};

std::vector<float> random_weights(Weights kind, std::size_t count, std::mt19937_64& random) {
  std::vector<float> out;
  for (std::size_t i = 0; i < count && kind >= Weights::each; ++i) {
    const bool zero = kind == Weights::some_zero && random() % 3 == 0;
    const double power = 6.0 * (static_cast<double>(random() % 1000) / 500.0 - 1.0);
    out.push_back(zero ? 0.0F : static_cast<float>(std::exp(power)));
  }
  return out;
}

HeldTokens random_held(Weights kind, std::mt19937_64& random) {
  HeldTokens out;
  for (Index t = kBegin; t < kEnd; ++t) {
    if (random() % 3 == 0) {
      out.tokens.push_back(t);
    }
  }
  out.weights = random_weights(kind, out.tokens.size(), random);
  out.common = kind == Weights::common ? 2.5F : 1.0F;
  return out;
}

MadeTokens random_made(const KvHead& head, const Kind& kind, bool values, std::mt19937_64& random) {
  const auto rows = static_cast<Index>(1 + random() % 8);
  const DType dtype = kind.payload ? DType::float32 : head.dtype;
  MadeTokens out;
  out.k = random_rows(rows, head.d(), dtype, random);
  if (values) {
    out.v = random_rows(rows, head.dv(), dtype, random);
  }
  out.weights = random_weights(kind.weights, static_cast<std::size_t>(rows), random);
  return out;
}

Compressed random_result(const KvHead& head, const Kind& kind, std::mt19937_64& random) {
  Compressed out;
  if (kind.held) {
    out.held = random_held(kind.weights, random);
  }
  if (kind.made) {
    out.made = random_made(head, kind, true, random);
  }
  if (kind.denominator) {
    Denominator& den = out.denominator.emplace();
    den.same_keys = kind.same_keys;
    den.held = random_held(kind.weights, random);
    if (kind.same_keys) {
      den.held.tokens = out.held.tokens;
      den.held.weights = random_weights(kind.weights, out.held.tokens.size(), random);
    }
    if (kind.made) {
      den.made = random_made(head, kind, false, random);
    }
  }
  out.aux_bytes = static_cast<Index>(random() % 100);
  out.transient_bytes = static_cast<Index>(random() % 100);
  if (kind.payload) {
    out.payload_bytes = static_cast<Index>(random() % 1000);
  }
  out.quantized = kind.quantized ? out.made.k.rows() / 2 : 0;
  return out;
}

// ------------------------------------------------------------------------- the estimator, slowly

struct Output {
  reference::Estimate estimate;
  reference::Vec scale;  // the same of |v|: what rounding of weights is relative to
};

// At one query, over the sinks [0, kBegin) with weight 1 and what is held of the middle.
Output slow_output(const KvHead& head, Index row, const Compressed& c) {
  const reference::Vec q = reference::rows_of(head.q[1])[row];
  HeldSets sets = held_sets(head, positions(0, kBegin), c);
  Output out{reference::estimate(q, head.scale, sets.numerator, sets.denominator), {}};
  for (reference::Weighted& one : sets.numerator) {
    std::ranges::transform(one.v, one.v.begin(), [](reference::Real x) { return std::abs(x); });
  }
  out.scale = reference::estimate(q, head.scale, sets.numerator, sets.denominator).z;
  return out;
}

void expect_near(const Output& got, const Output& expected, double near) {
  ASSERT_LE(std::abs(got.estimate.log_denominator - expected.estimate.log_denominator), near);
  for (std::size_t j = 0; j < expected.scale.size(); ++j) {
    ASSERT_LE(std::abs(got.estimate.z[j] - expected.estimate.z[j]), near * expected.scale[j]);
  }
}

// A weight w goes through log w as a float: |log w| <= 6 there, so w comes back within
// 6 * 2^-24 + 2^-24 of itself, and a quotient of sums of them within twice that.
constexpr double kWeightRounding = 2 * 7 * 0x1p-24 * 1.01;

std::string text_of(const Kind& k) {
  return "held " + std::to_string(k.held) + " made " + std::to_string(k.made) + " denominator " +
         std::to_string(k.denominator) + " same_keys " + std::to_string(k.same_keys) + " weights " +
         std::to_string(static_cast<int>(k.weights)) + " payload " + std::to_string(k.payload) +
         " quantised " + std::to_string(k.quantized);
}

std::vector<Kind> kinds() {
  std::vector<Kind> out;
  for (int bits = 0; bits < 64; ++bits) {
    for (const Weights w : {Weights::one, Weights::common, Weights::each, Weights::some_zero}) {
      const auto bit = [&](int i) { return (bits >> i & 1) != 0; };
      const Kind kind{bit(0), bit(1), bit(2), bit(3), w, bit(4), bit(5)};
      if ((kind.same_keys && !kind.denominator) || (kind.quantized && !kind.made)) {
        continue;
      }
      out.push_back(kind);
    }
  }
  return out;
}

TEST(HeadCache, AResultComesBackAsWhatItWas) {
  const std::vector<Index> middle = positions(kBegin, kEnd);
  std::mt19937_64 random(5);
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    const KvHead head = rounded_head(dtype, 17);
    for (const Kind& kind : kinds()) {
      SCOPED_TRACE(text_of(kind));
      const Compressed before = random_result(head, kind, random);
      const HeadCache cache = cache_from_bytes(to_bytes(cache_of(head, before)));
      const Compressed after = compressed_of(cache, head, middle, "there");
      check_compressed(after, {head, middle, {}, {}, {}, Rng(0, {"p", 0, 0}, "m")});

      EXPECT_EQ(after.held.tokens, before.held.tokens);
      const MemoryFigures was = memory_figures(before, head, kEnd - kBegin);
      const MemoryFigures is = memory_figures(after, head, kEnd - kBegin);
      EXPECT_EQ(is.tokens_kept, was.tokens_kept);
      EXPECT_EQ(is.bytes, was.bytes);
      EXPECT_EQ(is.middle_bytes, was.middle_bytes);
      EXPECT_EQ(is.aux_bytes, was.aux_bytes);
      EXPECT_EQ(is.transient_bytes, was.transient_bytes);
      EXPECT_EQ(bytes_of(cache, head.d(), head.dv(), dtype).sum(), was.middle_bytes);

      const double near = kind.weights == Weights::one ? 1e-14 : kWeightRounding;
      for (Index r = 0; r < head.nq(); ++r) {
        expect_near(slow_output(head, r, after), slow_output(head, r, before), near);
      }
    }
  }
}

TEST(HeadCache, WhatIsExportedSaysWhatTheRowSays) {
  const KvHead head = rounded_head(DType::float32, 3);
  Row row;
  row.compress_ms = 2.5;
  row.scoring_queries = 8;
  row.diag = "a=1;b=2";
  Compressed result;
  result.held.tokens = {6, 9};
  const HeadCache cache = exported(head, result, row, "one cell");
  EXPECT_EQ(cache.compress_ms, 2.5);
  EXPECT_EQ(cache.scoring_queries, 8);
  EXPECT_EQ(cache.degenerate, "one cell");
  EXPECT_EQ(cache.token, (std::vector<std::int32_t>{6, 9}));
  const Compressed back = compressed_of(cache, head, positions(kBegin, kEnd), "there");
  EXPECT_EQ(back.degenerate, "one cell");
  EXPECT_EQ(back.diag, (std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"b", "2"}}));
}

TEST(HeadCache, AnyOrderOfEntriesIsTheSameCache) {
  const KvHead head = rounded_head(DType::float16, 4);
  const std::vector<Index> middle = positions(kBegin, kEnd);
  std::mt19937_64 random(8);
  const Compressed result =
      random_result(head, {true, true, true, true, Weights::each, true, false}, random);
  HeadCache cache = cache_of(head, result);
  HeadCache mixed = cache;
  std::vector<std::size_t> order(cache.rows());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::shuffle(order.begin(), order.end(), random);
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto to = static_cast<Index>(i);
    const auto from = static_cast<Index>(order[i]);
    std::copy_n(cache.k.row(from), head.d(), mixed.k.row(to));
    std::copy_n(cache.v.row(from), head.dv(), mixed.v.row(to));
    mixed.log_weight[i] = cache.log_weight[order[i]];
    mixed.token[i] = cache.token[order[i]];
  }
  const Compressed a = compressed_of(cache, head, middle, "there");
  const Compressed b = compressed_of(mixed, head, middle, "there");
  EXPECT_EQ(a.held.tokens, b.held.tokens);
  EXPECT_EQ(a.held.weights, b.held.weights);
  expect_near(slow_output(head, 0, a), slow_output(head, 0, b), 1e-13);  // sums in another order
}

// --------------------------------------------------------------------------------------- bytes

TEST(HeadCache, BytesAreThoseOfTheDocumentation) {
  std::mt19937_64 random(2);
  const auto bytes = [&](std::vector<float> logs, std::optional<CacheDenominator> den = {}) {
    HeadCache c;
    c.k = random_rows(3, 4, DType::float16, random);
    c.v = random_rows(3, 2, DType::float16, random);
    c.log_weight = std::move(logs);
    c.denominator = std::move(den);
    const CacheBytes b = bytes_of(c, 4, 2, DType::float16);
    return std::pair{b.payload, b.aux};
  };
  using Pair = std::pair<Index, Index>;
  const Index rows = 3 * 6 * 2;
  EXPECT_EQ(bytes({}), (Pair{rows, 0}));
  EXPECT_EQ(bytes({0, 0, 0}), (Pair{rows, 0}));
  EXPECT_EQ(bytes({1, 1, 1}), (Pair{rows, 4}));
  EXPECT_EQ(bytes({0, 0, 1}), (Pair{rows, 12}));
  EXPECT_EQ(bytes({}, CacheDenominator{{}, {1, 2, 3}}), (Pair{rows, 12}));
  EXPECT_EQ(bytes({2, 2, 2}, CacheDenominator{{}, {1, 2, 3}}), (Pair{rows, 16}));
  EXPECT_EQ(bytes({}, CacheDenominator{Matrix(2, 4), {}}), (Pair{rows + 16, 0}));
  EXPECT_EQ(bytes({}, CacheDenominator{Matrix(2, 4), {1, 2}}), (Pair{rows + 16, 8}));
  HeadCache said;
  said.k = Matrix(3, 4);
  said.v = Matrix(3, 2);
  said.payload_bytes = 5;
  said.aux_bytes = 7;
  EXPECT_EQ(bytes_of(said, 4, 2, DType::float32).sum(), 12);
}

TEST(HeadCache, ARecordIsReadWholeOrRefused) {
  std::mt19937_64 random(99);
  for (int i = 0; i < 50; ++i) {
    const HeadCache cache = random_cache(4, 3, 2, DType::float32, random);
    const std::vector<std::byte> bytes = to_bytes(cache);
    EXPECT_EQ(to_bytes(cache_from_bytes(bytes)), bytes);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_THROW(cache_from_bytes(std::span(bytes).first(size)), InputError);
    }
    std::vector<std::byte> more = bytes;
    more.push_back(std::byte{0});
    EXPECT_THROW(cache_from_bytes(more), InputError);
    for (int f = 0; f < 50; ++f) {
      std::vector<std::byte> other = bytes;
      other[random() % other.size()] ^= static_cast<std::byte>(1 + random() % 255);
      try {
        EXPECT_EQ(to_bytes(cache_from_bytes(other)), other);
      } catch (const InputError&) {
      }
    }
  }
}

// ------------------------------------------------------------------------------------ refusals

TEST(HeadCache, WhatAnEntryMayNotSayIsRefused) {
  const KvHead head = rounded_head(DType::float16, 6);
  const std::vector<Index> middle = positions(kBegin, kEnd);
  Compressed result;
  result.held.tokens = {7, 8, 20};
  std::mt19937_64 random(1);
  result.made.k = random_rows(2, head.d(), DType::float16, random);
  result.made.v = random_rows(2, head.dv(), DType::float16, random);
  const HeadCache good = cache_of(head, result);
  ASSERT_NO_THROW(compressed_of(good, head, middle, "F: /g"));

  const auto refused = [&](const std::string& part, const std::function<void(HeadCache&)>& change) {
    HeadCache cache = good;
    change(cache);
    expect_refusal([&] { compressed_of(cache, head, middle, "F: /g"); }, "F: /g: ", part);
  };
  refused("token: row 0 is 4, expected a position", [](HeadCache& c) { c.token[0] = 4; });
  refused("of the middle, 5 to 29, or -1", [](HeadCache& c) { c.token[0] = 30; });
  refused("row 2 is marked as token 19", [](HeadCache& c) { c.token[2] = 19; });
  refused("token: duplicate 7", [&](HeadCache& c) {
    c.token[1] = 7;
    std::copy_n(c.k.row(0), head.d(), c.k.row(1));
    std::copy_n(c.v.row(0), head.dv(), c.v.row(1));
  });
  // One bit of one element, key or value.
  refused("k: row 1 is marked as token 8", [](HeadCache& c) { c.k.row(1)[3] += 0x1p-8F; });
  refused("v: row 2 is marked as token", [](HeadCache& c) { c.v.row(2)[4] += 0x1p-8F; });
  // What is made and counted at two bytes an element has two.
  refused("is no float16 number", [](HeadCache& c) { c.k.row(3)[2] = 1.0F + 0x1p-12F; });
  refused("v: row 4, channel 0", [](HeadCache& c) { c.v.row(4)[0] = 1e6F; });
  refused("k_den: row 0, channel 5", [&](HeadCache& c) {
    c.denominator.emplace().k = Matrix(1, head.d());
    c.denominator->k->row(0)[5] = 0.1F;
  });
  refused("quantised is 3, expected at most the 2", [](HeadCache& c) { c.quantized = 3; });

  // Numbers of any precision where the bytes are said.
  HeadCache said = good;
  said.k.row(3)[2] = 1.0F + 0x1p-12F;
  said.payload_bytes = 1000;
  EXPECT_EQ(*compressed_of(said, head, middle, "F: /g").payload_bytes, 1000);
  // No middle, no token.
  expect_refusal([&] { compressed_of(good, head, {}, "F: /g"); }, "expected a position");
}

}  // namespace
}  // namespace kvbench::test_head_cache
