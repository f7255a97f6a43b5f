// A block of queries against its definition, one number at a time: to the bit where it has one
// order; and float32 attention against float64.

#include <numeric>

#include "attention/estimator.hpp"
#include "attention/query_block.hpp"
#include "attention/scores.hpp"
#include "attention/truth.hpp"
#include "core/math.hpp"
#include "make_head.hpp"
#include "read_rows.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_query_block {
namespace {

struct Case {
  Index queries, tokens, d, dv;
  bool listed, weighted, causal;
};

// Queries around whole vectors, tokens around tiles and slabs, widths around panels of columns.
const Case kCases[] = {
    {1, 1, 1, 1, false, false, false},       {1, 300, 64, 64, true, true, false},
    {15, 7, 3, 5, false, true, false},       {16, 8, 8, 16, true, false, true},
    {17, 255, 33, 31, false, false, true},   {33, 256, 64, 33, true, true, true},
    {48, 257, 40, 64, false, true, false},   {64, 600, 130, 100, false, false, true},
    {63, 513, 128, 128, true, false, false}, {4, 260, 16, 200, true, true, true}};

template <class T>
class QueryBlockTest : public ::testing::Test {};
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(QueryBlockTest, Elements);

TYPED_TEST(QueryBlockTest, EqualsItsDefinition) {
  using T = TypeParam;
  QueryBlock<T> block;  // one for all: nothing of a case before may be left
  unsigned seed = 0;
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.queries << " queries, " << c.tokens << " tokens");
    std::mt19937_64 random(++seed);
    const Matrix keys = normal_matrix(c.tokens + 9, c.d, 4.0, random);
    const Matrix values = normal_matrix(c.tokens + 9, c.dv, 1.0, random);
    const Matrix q = normal_matrix(c.queries + 2, c.d, 3.0, random);
    MatrixD queries;
    gather_rows(q, positions(0, c.queries + 2), queries);
    std::vector<Index> rows;
    std::vector<T> log_weights;
    for (Index i = 0; i < c.tokens; ++i) {
      rows.push_back(static_cast<Index>(random() % static_cast<std::uint64_t>(c.tokens + 9)));
      log_weights.push_back(static_cast<T>(random() % 100) / T{50} - T{1});
    }
    std::vector<Range> seen;
    for (Index r = 0; r < c.queries; ++r) {
      const Index end = c.causal ? (c.tokens * r) / c.queries : c.tokens;  // the first sees nothing
      seen.push_back({seed % 2 == 0 ? std::max<Index>(0, end - 60 - r) : 0, end});
    }
    const T sink = seed % 3 == 0 ? T{0.75} : -std::numeric_limits<T>::infinity();
    const std::span<const Index> list =
        c.listed ? std::span<const Index>(rows) : std::span<const Index>();
    MatrixD out(c.queries, c.dv);
    std::fill_n(out.data(), c.queries * c.dv, 0.5);
    const RowList value_list{values, list, c.tokens};
    block.attend(queries, {2, 2 + c.queries}, {keys, list, c.tokens},
                 c.weighted ? log_weights.data() : nullptr, seen, &value_list, out.data(), sink);
    std::vector<double> sums(c.tokens, 0.25);
    std::vector<std::uint8_t> noticed(c.tokens, 0);
    block.add_columns(sums.data(), noticed.data(), 0.05);

    const Index told = std::ranges::max(seen, {}, &Range::end).end;
    std::vector<long double> columns(c.tokens, 0.25L);
    std::vector<int> above(c.tokens, 0);
    const auto row = [&](Index i) { return c.listed ? rows[i] : i; };
    for (Index r = 0; r < c.queries; ++r) {
      std::vector<T> logit(c.tokens);
      T shift = sink;
      for (Index i = seen[r].begin; i < seen[r].end; ++i) {
        T sum = 0;
        for (Index t = 0; t < c.d; ++t) {
          sum = std::fma(static_cast<T>(keys.row(row(i))[t]), static_cast<T>(queries.row(r + 2)[t]),
                         sum);
        }
        logit[i] = c.weighted ? sum + log_weights[i] : sum;
        shift = std::max(shift, logit[i]);
      }
      ASSERT_EQ(block.shift(r), static_cast<double>(shift));
      double total = std::isinf(sink) ? 0.0 : static_cast<double>(exp_shared(sink - shift));
      double square = 0.0;
      for (Index begin = 0; begin < told; begin += 256) {
        double part = 0.0;
        double squares = 0.0;
        for (Index i = begin; i < std::min(told, begin + 256); ++i) {
          const T w = block.weight(i, r);
          if (seen[r].contains(i)) {
            // exp_shared's own error, in units of the element type (test_math.cpp).
            const long double exact = std::exp(static_cast<long double>(logit[i] - shift));
            const auto bound = static_cast<long double>(std::numeric_limits<T>::epsilon());
            ASSERT_TRUE(std::abs(static_cast<long double>(w) - exact) <= bound * exact);
          } else {
            ASSERT_EQ(w, T{0}) << "unseen";
          }
          part += static_cast<double>(w);
          squares = std::fma(static_cast<double>(w), static_cast<double>(w), squares);
        }
        total += part;
        square += squares;
      }
      ASSERT_EQ(block.total(r), total);
      ASSERT_EQ(block.square(r), square);
      for (Index t = 0; t < c.dv; ++t) {
        double expected = 0.5;
        for (Index begin = 0; begin < told; begin += 256) {
          T part = 0;
          for (Index i = begin; i < std::min(told, begin + 256); ++i) {
            part = std::fma(block.weight(i, r), static_cast<T>(values.row(row(i))[t]), part);
          }
          expected += static_cast<double>(part);
        }
        ASSERT_EQ(out.row(r)[t], expected) << r << " " << t;
      }
      for (Index i = seen[r].begin; i < seen[r].end; ++i) {
        columns[i] += static_cast<long double>(block.weight(i, r)) / total;
        above[i] |= static_cast<double>(block.weight(i, r)) > 0.05 * total ? 1 : 0;
      }
    }
    for (Index i = 0; i < c.tokens;
         ++i) {  // at most 64 terms of at most 1, rounded some times each
      ASSERT_NEAR(sums[i], static_cast<double>(columns[i]), 1e-13) << i;
      ASSERT_EQ(noticed[i], above[i]) << i;
    }
  }
}

// Key norms as real models have them: logits to some 30, each off by some 30 * 128 * 2^-24 at most.
KvHead long_head(Precision precision) {
  KvHead head = make_head({.n = 700, .nq = 90, .d = 128, .dv = 96, .key_norm = 30.0}, 4);
  head.precision = precision;
  return head;
}

// What rounding of single products and sums may add up to, of values of size 1.
constexpr double kSingle = 2e-5;

TEST(SinglePrecision, ExactAttentionAndScoresAreNearTheReferences) {
  const KvHead head = long_head(Precision::float32);
  const std::vector<Index> at = positions(620, 700);
  for (Index g = 0; g < head.group(); ++g) {
    const ExactAttention got = exact_attention(head, g, at, 2);
    const MatrixD p = exact_probabilities(head, g, at);
    for (Index r = 0; r < 80; ++r) {
      const reference::Attention slow = reference::attention(head, g, at[r]);
      EXPECT_NEAR(got.log_z[r], static_cast<double>(slow.log_z), kSingle);
      expect_all_near(got.output.row(r), slow.out, kSingle);
      expect_all_near(p.row(r), slow.p, kSingle);
    }
    const reference::Rows sums = reference::attention_sums(head, 620, 700);
    const auto fast = attention_sums(head, {620, 700});
    for (Index i = 0; i < head.n(); ++i) {
      EXPECT_NEAR(fast[g][i], static_cast<double>(sums[g][i]), 80 * kSingle);
      EXPECT_NEAR(got.mass[i], static_cast<double>(sums[g][i]) / 80, kSingle);
    }
  }
}

TEST(SinglePrecision, EstimatesAreNearTheReference) {
  const KvHead head = long_head(Precision::float32);
  const std::vector<Index> kept = positions(30, 600);
  std::vector<float> weights;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    weights.push_back(i % 5 == 0 ? 0.0F : 0.5F * static_cast<float>(i % 7));
  }
  const MatrixD queries = scaled_queries(head, 1, 70);
  SoftmaxSums sums(queries, head.dv(), head.precision);
  sums.add_rows(head.k, head.v, kept, weights, 1.0F, SoftmaxPart::both);
  const std::vector<Index> first = positions(0, 30);
  sums.add_rows(head.k, head.v, first, {}, 1.0F, SoftmaxPart::both);
  const MatrixD z = sums.output();
  const reference::Rows k = reference::rows_of(head.k);
  const reference::Rows v = reference::rows_of(head.v);
  std::vector<reference::Weighted> set;
  for (Index i = 0; i < 600; ++i) {
    set.push_back({k[i], v[i], i < 30 ? 1.0L : static_cast<long double>(weights[i - 30])});
  }
  const reference::Rows q = reference::rows_of(head.q[1]);
  for (Index r = 0; r < 70; ++r) {
    const reference::Estimate slow = reference::estimate(q[20 + r], head.scale, set, set);
    expect_all_near(z.row(r), slow.z, kSingle);
    EXPECT_NEAR(sums.log_denominator()[r], static_cast<double>(slow.log_denominator), kSingle);
  }
}

TEST(Gram, IsTheSumOfItsRowsProducts) {
  std::mt19937_64 random(6);
  for (const Index n : {1, 255, 256, 700}) {
    for (const Index w : {1, 7, 16, 33, 130}) {
      const Matrix rows = normal_matrix(n, w, 1.0, random);
      for (const Precision precision : {Precision::float32, Precision::float64}) {
        MatrixD out(w, w);
        std::fill_n(out.data(), w * w, 2.0);
        with_element(precision, [&](auto element) { add_gram<decltype(element)>(rows, out); });
        const double rounding = precision == Precision::float32 ? 256 * 0x1p-24 : 1e-14;
        for (Index a = 0; a < w; ++a) {
          for (Index b = 0; b < w; ++b) {
            long double sum = 2.0L;
            double size = 2.0;
            for (Index i = 0; i < n; ++i) {
              const long double term = static_cast<long double>(rows.row(i)[a]) * rows.row(i)[b];
              sum += term;
              size += static_cast<double>(std::abs(term));
            }
            ASSERT_NEAR(out.row(a)[b], static_cast<double>(sum), rounding * size) << n << " " << w;
            ASSERT_EQ(out.row(a)[b], out.row(b)[a]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_query_block
