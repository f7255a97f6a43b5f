// Kernels for AVX2 and for AVX-512: the same bits for every shape of tiles and remainders.
#include <gtest/gtest.h>

#include "attention/inner_products.hpp"
#include "attention/query_block.hpp"
#include "attention/truth.hpp"
#include "core/isa.hpp"
#include "make_head.hpp"

namespace kvbench::test_isa {
namespace {

class IsaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runs(Isa::avx512)) {
      GTEST_SKIP() << "this processor has no AVX-512: its kernels are not run";
    }
  }
  void TearDown() override { set_isa(runs(Isa::avx512) ? Isa::avx512 : Isa::avx2); }
};

template <class T>
BasicMatrix<T> random_rows(Index rows, Index cols, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  BasicMatrix<T> out(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    out.data()[i] = static_cast<T>(normal(random));
  }
  return out;
}

template <class T>
void expect_same_bits(const std::vector<T>& one, const std::vector<T>& two, Index where) {
  ASSERT_EQ(one.size(), two.size());
  ASSERT_EQ(std::memcmp(one.data(), two.data(), one.size() * sizeof(T)), 0) << where;
}

template <class Compute>
auto with(Isa isa, const Compute& compute) {
  set_isa(isa);
  return compute();
}

template <class T>
std::vector<T> elements(const BasicMatrix<T>& m) {
  return {m.data(), m.data() + m.rows() * m.cols()};
}

template <class T>
void compare_products() {
  for (const Index na : {1, 5, 6, 7, 24, 37}) {
    for (const Index nb : {1, 8, 15, 16, 33, 70}) {
      for (const Index d : {1, 31, 64, 300}) {
        const auto a = random_rows<T>(na, d, 1);
        const auto b_t = random_rows<T>(d, nb, 2);
        const auto compute = [&] {
          BasicMatrix<T> out;
          inner_products(a, b_t, out);
          return elements(out);
        };
        expect_same_bits(with(Isa::avx2, compute), with(Isa::avx512, compute), na * nb * d);
      }
    }
  }
}

TEST_F(IsaTest, InnerProducts) {
  compare_products<float>();
  compare_products<double>();
}

TEST_F(IsaTest, Grams) {
  for (const Index width : {1, 17, 64, 100}) {
    const Matrix rows = random_rows<float>(600, width, 3);
    const auto compute = [&] {
      MatrixD one(width, width);
      MatrixD two(width, width);
      add_gram<float>(rows, one);
      add_gram<double>(rows, two);
      std::vector<double> out = elements(one);
      const std::vector<double> more = elements(two);
      out.insert(out.end(), more.begin(), more.end());
      return out;
    };
    expect_same_bits(with(Isa::avx2, compute), with(Isa::avx512, compute), width);
  }
}

// Exact attention and scores of a head: every kernel of a query block.
template <class T>
std::vector<double> attention(KvHead head, Index queries) {
  head.precision = std::is_same_v<T, float> ? Precision::float32 : Precision::float64;
  const std::vector<Index> last = positions(head.n() - queries, head.n());
  const ExactAttention exact = exact_attention(head, 0, last, 1);
  std::vector<double> out = elements(exact.output);
  for (const auto* more : {&exact.mass, &exact.log_z, &exact.p_norm}) {
    out.insert(out.end(), more->begin(), more->end());
  }
  out.insert(out.end(), exact.noticed.begin(), exact.noticed.end());
  QueryBlock<T> block;
  std::vector<double> values(static_cast<std::size_t>(queries * head.dv()));
  block.attend(head, 0, last, values.data());
  out.insert(out.end(), values.begin(), values.end());
  for (Index r = 0; r < queries; ++r) {
    for (Index i = 0; i < head.n(); ++i) {
      out.push_back(static_cast<double>(block.weight(i, r)));
    }
  }
  return out;
}

TEST_F(IsaTest, Attention) {
  for (const Index n : {40, 257, 519, 770}) {
    for (const Index queries : {1, 17, 37}) {
      for (const Index d : {7, 64}) {
        const KvHead head =
            make_head({.n = n, .nq = n, .d = d, .dv = d + 3, .group = 1, .key_norm = 12.0}, 7);
        const auto single = [&] { return attention<float>(head, queries); };
        expect_same_bits(with(Isa::avx2, single), with(Isa::avx512, single), n);
        const auto both = [&] { return attention<double>(head, queries); };
        expect_same_bits(with(Isa::avx2, both), with(Isa::avx512, both), n);
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_isa
