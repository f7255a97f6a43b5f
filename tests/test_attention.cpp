// Ground truth, estimator and inner products against slow references in long double.
#include "attention/estimator.hpp"
#include "attention/truth.hpp"
#include "attention/value_norms.hpp"
#include "make_head.hpp"
#include "read_rows.hpp"
#include "reference/clusterability.hpp"

namespace kvbench::test_attention {
namespace {

// float64 sums of some hundred terms of like size against long double ones.
constexpr double kRounding = 1e-12;

TEST(InnerProducts, EverySizeEqualsTheOrderedSum) {
  std::mt19937_64 generator(3);
  for (const Index na : {1, 5, 6, 7, 13, 24, 31, 33}) {
    for (const Index nb : {1, 7, 8, 9, 16, 17, 31, 33}) {
      for (const Index d : {1, 3, 64, 256, 257, 600}) {
        const Matrix a = normal_matrix(na, d, 2.0, generator);
        const Matrix b = normal_matrix(nb, d, 2.0, generator);
        MatrixD wide_a, wide_b, b_t, out;
        gather_rows(a, positions(0, na), wide_a);
        gather_rows(b, positions(0, nb), wide_b);
        transpose(wide_b, b_t);
        inner_products(wide_a, b_t, out);
        for (Index i = 0; i < na; ++i) {
          for (Index j = 0; j < nb; ++j) {
            double sum = 0.0;
            for (Index t = 0; t < d; ++t) {
              sum = std::fma(wide_a.row(i)[t], wide_b.row(j)[t], sum);
            }
            ASSERT_EQ(out.row(i)[j], sum) << na << " " << nb << " " << d;  // to the bit
          }
        }
        if (na == nb) {
          MatrixD upper;
          inner_products(wide_a, b_t, upper, /*upper=*/true);
          for (Index i = 0; i < na; ++i) {
            for (Index j = i; j < nb; ++j) {
              ASSERT_EQ(upper.row(i)[j], out.row(i)[j]);
            }
          }
        }
      }
    }
  }
}

// Every third of the last `m` queries, in both element types, against sums over the values it sees.
void expect_norms(KvHead head, Index m) {
  // A thousand float64 roundings; chains of up to 256 float32 products, twice a rounding of 2^-24.
  constexpr double kFloat64 = 1e-13, kFloat32 = 256 * 0x1p-23;
  head.precision = Precision::float64;
  const ValueNorms norms = value_norms(head, m, 2);
  head.precision = Precision::float32;
  const ValueNorms narrow = value_norms(head, m, 2);
  const auto d = static_cast<std::size_t>(head.dv());
  for (Index j = 0; j < m; j += 3) {
    std::vector<reference::Vec> gram(d, reference::Vec(d, 0.0L));
    const Range seen = head.visible(head.n() - m + j);
    for (Index i = seen.begin; i < seen.end; ++i) {
      for (std::size_t t = 0; t < d; ++t) {
        for (std::size_t u = 0; u < d; ++u) {
          gram[t][u] += static_cast<long double>(head.v.row(i)[t]) * head.v.row(i)[u];
        }
      }
    }
    long double trace = 0.0L;
    for (std::size_t t = 0; t < d; ++t) {
      trace += gram[t][t];
    }
    const auto fro = static_cast<double>(std::sqrt(trace));
    const auto op = static_cast<double>(std::sqrt(reference::eigen(gram).values.front()));
    EXPECT_NEAR(norms.frobenius[j], fro, kFloat64 * fro) << j;
    EXPECT_NEAR(norms.spectral[j], op, kFloat64 * op) << j;
    EXPECT_NEAR(narrow.frobenius[j], fro, kFloat32 * fro) << j;
    EXPECT_NEAR(narrow.spectral[j], op, kFloat32 * op) << j;
  }
}

// Where the last query's eigenvector leads to the next, and where it does not.
TEST(ValueNorms, OfEveryKind) {
  HeadShape shape{.n = 140, .nq = 100};
  for (const Index d : {1, 2, 7, 40}) {
    shape.dv = d;
    KvHead head = make_head(shape, 5);
    expect_norms(head, 100);
    for (Index i = 0; i < shape.n; ++i) {  // nothing for long, then a new direction, ever larger
      for (Index t = 0; t < d; ++t) {
        head.v.row(i)[t] = i > 70 && t == i % d ? static_cast<float>(i - 60) : 0.0F;
      }
    }
    expect_norms(head, 100);
    for (Index i = 0; i < shape.n; ++i) {  // equal eigenvalues
      for (Index t = 0; t < d; ++t) {
        head.v.row(i)[t] = t == i % d ? 2.0F : 0.0F;
      }
    }
    expect_norms(head, 100);
    for (Index i = 0; i < shape.n; ++i) {  // one direction
      std::fill_n(head.v.row(i), d, 0.3F);
    }
    expect_norms(head, 100);
  }
}

// n = 90, 40 queries evaluated: a window of all, of some, of one's own position.
TEST(ValueNorms, OfTheWindow) {
  for (const Index window : {1, 3, 50, 51, 89, 90, 91}) {
    KvHead head = make_head({.n = 90, .nq = 90, .dv = 7}, 6);
    head.window = window;
    expect_norms(head, 40);
    expect_norms(head, 90);
  }
}

// Values of 1 beside some that leave the window, whatever their size.
TEST(ValueNorms, LargeValuesLeaveNothingBehind) {
  const HeadShape shape{.n = 400, .nq = 400, .dv = 6};
  for (const Index window : {1, 20, 70, 200, 350}) {
    for (const float size : {1e4F, 1e5F, 1e6F, 1e30F}) {
      SCOPED_TRACE(testing::Message() << window << " " << size);
      KvHead head = make_head(shape, 7);
      head.window = window;
      for (const Index token : {3, 150, 260, 301, 333}) {
        for (Index t = 0; t < shape.dv; ++t) {
          head.v.row(token)[t] *= size;
        }
      }
      for (const Index m : {9, 400}) {
        expect_norms(head, m);
      }
    }
  }
}

// Values whose squares vanish or overflow in float32.
TEST(ValueNorms, OfTinyAndHugeValues) {
  const HeadShape shape{.n = 120, .nq = 120, .dv = 5};
  for (const Index window : {0, 1, 30, 90}) {
    for (const float size : {1e-40F, 1e-30F, 1e-20F, 1e20F, 1e37F}) {
      SCOPED_TRACE(testing::Message() << window << " " << size);
      KvHead head = make_head(shape, 8);
      head.window = window;
      for (Index i = 0; i < shape.n * shape.dv; ++i) {
        head.v.data()[i] *= size;
      }
      expect_norms(head, 50);
    }
  }
}

class ExactAttentionTest : public ::testing::TestWithParam<std::pair<Index, bool>> {};

INSTANTIATE_TEST_SUITE_P(WindowsAndSinks, ExactAttentionTest,
                         ::testing::Values(std::pair{0, false}, std::pair{0, true},
                                           std::pair{1, false}, std::pair{7, true},
                                           std::pair{60, true}, std::pair{89, false},
                                           std::pair{200, true}));

TEST_P(ExactAttentionTest, EqualsReference) {
  const HeadShape shape{.n = 90, .nq = 50, .dv = 5};
  KvHead head = make_head(shape, 11);
  head.window = GetParam().first;
  if (GetParam().second) {
    head.sink_logit = {2.5F, -30.0F};  // of weight, and of next to none
  }
  const Index m = 40;
  for (Index g = 0; g < head.group(); ++g) {
    const ExactAttention truth = exact_attention(head, g, m, 2);
    std::vector<long double> mass(shape.n, 0.0L);
    std::vector<int> noticed(mass.size(), 0);
    for (Index j = 0; j < m; ++j) {
      const reference::Attention slow = reference::attention(head, g, shape.n - m + j);
      const auto at = static_cast<std::size_t>(j);
      EXPECT_NEAR(truth.log_z[at], static_cast<double>(slow.log_z), kRounding);
      long double square = 0.0L;
      for (std::size_t i = 0; i < mass.size(); ++i) {
        square += slow.p[i] * slow.p[i];
        mass[i] += slow.p[i] / m;
        noticed[i] |= slow.p[i] > 0.005L ? 1 : 0;
      }
      EXPECT_NEAR(truth.p_norm[at], static_cast<double>(std::sqrt(square)), kRounding);
      expect_all_near(truth.output.row(j), slow.out, kRounding);
    }
    for (std::size_t i = 0; i < mass.size(); ++i) {
      EXPECT_NEAR(truth.mass[i], static_cast<double>(mass[i]), kRounding);
      EXPECT_EQ(truth.noticed[i], noticed[i]);
    }
  }
}

// A logit far above all others takes all of the attention, and nothing overflows.
TEST(ExactAttention, SinkThatTakesAll) {
  for (const Precision precision : {Precision::float32, Precision::float64}) {
    KvHead head = make_head({}, 4);
    head.precision = precision;
    head.sink_logit = {3000.0F, -3000.0F};
    const ExactAttention all = exact_attention(head, 0, 8, 1);
    const ExactAttention none = exact_attention(head, 1, 8, 1);
    for (Index j = 0; j < 8; ++j) {
      EXPECT_EQ(all.log_z[j], 3000.0);
      EXPECT_EQ(all.p_norm[j], 0.0);
      EXPECT_EQ(all.output.row(j)[0], 0.0);
      EXPECT_EQ(sink_share(head, 0, all.log_z[j]), 1.0);
      EXPECT_EQ(sink_share(head, 1, none.log_z[j]), 0.0);
    }
    KvHead plain = head;
    plain.sink_logit.clear();
    EXPECT_EQ(none.log_z, exact_attention(plain, 1, 8, 1).log_z);
  }
}

TEST(ExactAttention, SameBitsForAnyNumberOfThreads) {
  const KvHead head = make_head({.n = 300, .nq = 200}, 12);
  const ExactAttention one = exact_attention(head, 0, 150, 1);
  for (const int threads : {2, 3, 7}) {
    const ExactAttention many = exact_attention(head, 0, 150, threads);
    EXPECT_EQ(one.mass, many.mass);
    EXPECT_EQ(one.log_z, many.log_z);
    EXPECT_TRUE(std::equal(one.output.data(), one.output.data() + 150 * 8, many.output.data()));
  }
}

class EstimatorTest : public ::testing::TestWithParam<double> {};

// Key norms up to 40 at scale 1/sqrt(8): logits to +-400, and the reference's long double still
// holds exp of them, unshifted.
INSTANTIATE_TEST_SUITE_P(KeyNorms, EstimatorTest, ::testing::Values(1.0, 10.0, 40.0));

TEST_P(EstimatorTest, SeparateSetsEqualReference) {
  // More than one block of keys.
  const KvHead head = make_head({.n = 700, .nq = 10, .key_norm = GetParam()}, 13);
  const Index m = 10;
  const std::vector<Index> kept = positions(5, 650);
  std::vector<float> weights;
  std::mt19937_64 generator(1);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    weights.push_back(i % 7 == 0 ? 0.0F : static_cast<float>(generator() % 1000) / 100.0F);
  }
  const std::vector<Index> denominator = positions(30, 690);

  const MatrixD q = scaled_queries(head, 1, m);
  SoftmaxSums sums(q, head.dv(), head.precision);
  sums.add_rows(head.k, head.v, kept, weights, 1.0F, SoftmaxPart::numerator);
  sums.add_rows(head.k, head.v, denominator, {}, 2.5F, SoftmaxPart::denominator);
  const MatrixD z = sums.output();
  const std::vector<double> log_d = sums.log_denominator();

  const auto n_set = reference::entries(reference::rows_at(head.k, kept),
                                        reference::rows_at(head.v, kept), weights);
  const auto d_set = reference::entries(reference::rows_at(head.k, denominator), {},
                                        std::vector<float>(denominator.size(), 2.5F));
  const reference::Rows queries = reference::rows_of(head.q[1]);
  for (Index j = 0; j < m; ++j) {
    const reference::Estimate slow = reference::estimate(queries[j], head.scale, n_set, d_set);
    long double norm = std::sqrt(reference::dot(slow.z, slow.z));
    for (Index t = 0; t < head.dv(); ++t) {
      // Logits of up to 400 carry a rounding of 400 * 2^-52 into the exponent.
      EXPECT_NEAR(z.row(j)[t], static_cast<double>(slow.z[t]), 1e-11 * static_cast<double>(norm));
    }
    EXPECT_NEAR(log_d[j], static_cast<double>(slow.log_denominator), 1e-11);
  }
}

TEST(Estimator, CausalWindowsOverEverythingAreExactAttention) {
  const KvHead head = make_head({.n = 80}, 14);
  const Index m = 30;
  const MatrixD q = scaled_queries(head, 0, m);
  SoftmaxSums sums(q, head.dv(), head.precision);
  sums.add(causal_rows(head, positions(60, 80), m));  // in any order of pieces
  sums.add(causal_rows(head, positions(0, 20), m));
  sums.add_rows(head.k, head.v, positions(20, 50), {}, 1.0F, SoftmaxPart::both);
  const ExactAttention truth = exact_attention(head, 0, m, 1);
  // Tokens 50..59 are missing for all; give them through the mask too.
  sums.add(causal_rows(head, positions(50, 60), m));
  const MatrixD z = sums.output();
  for (Index j = 0; j < m; ++j) {
    expect_all_near(z.row(j), std::span(truth.output.row(j), static_cast<std::size_t>(head.dv())),
                    kRounding);
    EXPECT_NEAR(sums.log_denominator()[j], truth.log_z[j], kRounding);
  }
}

TEST(Estimator, NothingInTheDenominatorIsDegenerate) {
  const KvHead head = make_head({}, 15);
  const MatrixD q = scaled_queries(head, 0, 4);
  SoftmaxSums sums(q, head.dv(), head.precision);
  sums.add_rows(head.k, head.v, positions(0, 5), {}, 1.0F, SoftmaxPart::numerator);
  const MatrixD z = sums.output();
  ASSERT_EQ(z.rows(), 4);
  for (Index r = 0; r < 4; ++r) {
    EXPECT_TRUE(std::isnan(z.row(r)[0]));
  }
}

}  // namespace
}  // namespace kvbench::test_attention
