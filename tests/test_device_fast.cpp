// Attention under --gpu-math fast, on a machine of the CPU, against the exact functions: how far
// results may be off, and that they have the same bits in both orders of threads and however the
// work is cut.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "attention/exact.hpp"
#include "attention/scores.hpp"
#include "fast_heads.hpp"
#include "sum_pieces.hpp"

namespace kvbench {
namespace {

using namespace testing_fast;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What a weight is off by (fast_attention.hpp): about (2^-23 + 2^-24 sqrt(d / 16)) |l| of its
// logit, 3 2^-22 s |q||k| more for float32, and 1e-6 for exp2 and sums in float32. Logits here are
// below `most`; the factor of 2 is for the worst of some thousand.
double weight_error(double most) {
  return 2e-6 + 2.0 * most * 0x1p-22;
}

// The project's promise for outputs of usual norms, relative to an output's own norm.
double output_error(DType type) {
  return type == DType::float32 ? 1e-4 : 1e-5;
}

// Odd sizes around every tile: 16 and 64 rows, 64 keys, 128 channels, slabs of 512 keys.
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1},     {2, 1, 3, 64, 2},       {7, 7, 64, 80, 3},    {65, 40, 80, 64, 2},
    {129, 33, 96, 3, 8}, {513, 17, 128, 128, 1}, {200, 5, 129, 65, 2}, {140, 66, 256, 256, 1},
};

std::string text(const Case& c, DType type) {
  return "n " + std::to_string(c.n) + " nq " + std::to_string(c.nq) + " d " + std::to_string(c.d) +
         " dv " + std::to_string(c.dv) + " group " + std::to_string(c.group) + " " +
         std::string(name(type));
}

double most_logit(const KvHead& head) {
  double most = 0.0;
  const auto square = [](std::span<const float> x) {
    return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
  };
  double keys = 0.0;
  for (Index i = 0; i < head.n(); ++i) {
    keys = std::max(keys, square(head.k.view().row_span(i)));
  }
  for (const Matrix& q : head.q) {
    for (Index r = 0; r < q.rows(); ++r) {
      most = std::max(most, head.scale * std::sqrt(keys * square(q.view().row_span(r))));
    }
  }
  return most;
}

// |got - want| of two rows, relative to |want|.
double relative(const double* got, const double* want, Index count) {
  double off = 0.0;
  double size = 0.0;
  for (Index c = 0; c < count; ++c) {
    off += (got[c] - want[c]) * (got[c] - want[c]);
    size += want[c] * want[c];
  }
  return off == 0.0 ? 0.0 : std::sqrt(off / size);
}

struct Exact {
  std::vector<double> output, log_z, p_norm, mass;
  std::vector<std::uint8_t> noticed;
  friend bool operator==(const Exact&, const Exact&) = default;
};

// `off`: what an output may be off by, relative to its norm.
void check_exact(const KvHead& head, Index g, const std::vector<Index>& at, double off) {
  const Exact got =
      on_every_machine(head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
        const ExactAttention a = exact_attention_fast(machine, tensors, scales, g, at);
        return Exact{flat(a.output), a.log_z, a.p_norm, a.mass, a.noticed};
      });
  const ExactAttention want = exact_attention(head, g, at, 1);
  const MatrixD p = exact_probabilities(head, g, at);
  const double weight = weight_error(most_logit(head));
  for (std::size_t r = 0; r < at.size(); ++r) {
    const auto row = static_cast<Index>(r);
    const double* output = got.output.data() + row * head.dv();
    EXPECT_TRUE(relative(output, want.output.row(row), head.dv()) <= off)
        << "output " << relative(output, want.output.row(row), head.dv());
    expect_near(got.log_z[r], want.log_z[r], weight, "log_z");
    expect_near(got.p_norm[r], want.p_norm[r], weight * want.p_norm[r], "p_norm");
  }
  for (std::size_t i = 0; i < want.mass.size(); ++i) {
    // Below 2^-100 a probability may underflow in float32.
    expect_near(got.mass[i], want.mass[i], weight * want.mass[i] + 0x1p-100, "mass");
    bool near = false;  // either answer is right
    for (std::size_t r = 0; r < at.size(); ++r) {
      const double x = p.row(static_cast<Index>(r))[i];
      near = near || std::abs(x - kAmnesiaThreshold) <= weight * kAmnesiaThreshold;
    }
    EXPECT_TRUE(near || got.noticed[i] == want.noticed[i]) << i;
  }
}

TEST(FastExactAttention, EveryShapeAndType) {
  unsigned seed = 1;
  for (const Case& c : kCases) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(text(c, type));
      const KvHead head = head_of(c, type, seed++);
      check_exact(head, c.group - 1, positions(c.n - c.nq, c.n), output_error(type));
    }
  }
}

TEST(FastExactAttention, ManyRowsAndKeysInAnyOrder) {
  const KvHead head = head_of({1300, 300, 33, 140, 2}, DType::float16, 50);
  check_exact(head, 1, positions(1000, 1300), 1e-5);
  check_exact(head, 1, {1299, 1000, 1037, 1037, 1023, 1024, 1025}, 1e-5);
  std::vector<Index> whole = positions(0, 600);
  std::reverse(whole.begin(), whole.end());
  check_exact(head_of({600, 600, 5, 9, 1}, DType::float32, 51), 0, whole, 1e-4);
}

TEST(FastExactAttention, LargeNorms) {
  for (const DType type : kTypes) {
    // |k| = 40 and |q| = 12: logits of up to 60 where d = 64, which one key may dominate.
    KvHead head = head_of({300, 40, 64, 64, 1}, type, 60, 40.0);
    for (Index i = 0; i < 40 * 64; ++i) {
      head.q[0].data()[i] *= 4.0F;
    }
    check_exact(head, 0, positions(260, 300), 1e-4);
  }
}

TEST(FastExactAttention, ExtremesStayFinite) {
  for (const float size : {1e-30F, 1e-6F, 1e15F, 1e30F}) {
    KvHead head = head_of({90, 30, 16, 8, 1}, DType::float32, 61);
    for (Index i = 0; i < 90 * 16; ++i) {
      head.k.data()[i] *= size;
    }
    head.k.row(3)[5] = 0.0F;
    HostMachine machine;
    const HeadTensors<HostMachine> tensors(machine, head);
    const FastScales scales(machine, tensors);
    const std::vector<Index> last = positions(60, 90);
    const ExactAttention got = exact_attention_fast(machine, tensors, scales, 0, last);
    const ExactAttention want = exact_attention(head, 0, last, 1);
    for (std::size_t r = 0; r < 30; ++r) {
      const auto row = static_cast<Index>(r);
      // Huge logits: one key has all the weight. Tiny ones: all keys have the same.
      EXPECT_TRUE(relative(got.output.row(row), want.output.row(row), 8) <= 1e-4) << size;
      expect_near(got.log_z[r], want.log_z[r], 1e-5 * (1.0 + std::abs(want.log_z[r])), "log_z");
    }
  }
}

TEST(FastExactAttention, ZeroKeysAndValues) {
  KvHead head = head_of({100, 20, 32, 16, 1}, DType::float16, 62);
  head.k = Matrix(100, 32);
  check_exact(head, 0, positions(80, 100), 1e-5);
  head.v = Matrix(100, 16);
  check_exact(head, 0, positions(80, 100), 1e-5);
}

TEST(FastAttentionSums, EqualTheCpu) {
  unsigned seed = 100;
  for (const Case& c : kCases) {
    for (const DType type : kTypes) {
      SCOPED_TRACE(text(c, type));
      const KvHead head = head_of(c, type, seed++);
      const Index start = c.n - c.nq;
      for (const Range queries : {Range{0, c.n}, Range{start + c.nq / 2, c.n}, Range{0, start}}) {
        const auto got = on_every_machine(
            head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
              return attention_sums_fast(machine, tensors, scales, queries);
            });
        const auto want = attention_sums(head, queries);
        ASSERT_EQ(got.size(), want.size());
        const double weight = weight_error(most_logit(head));
        for (std::size_t g = 0; g < want.size(); ++g) {
          ASSERT_EQ(got[g].size(), want[g].size());
          for (std::size_t i = 0; i < want[g].size(); ++i) {
            expect_near(got[g][i], want[g][i], weight * want[g][i] + 0x1p-100, "sum");
          }
        }
      }
    }
  }
}

TEST(FastAttentionSums, ManyBlocksOfQueries) {
  const KvHead head = head_of({700, 690, 16, 4, 2}, DType::float16, 130);
  const auto got =
      on_every_machine(head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
        return attention_sums_fast(machine, tensors, scales, {0, 700});
      });
  const auto want = attention_sums(head, {0, 700});
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t i = 0; i < 700; ++i) {
      expect_near(got[g][i], want[g][i], weight_error(most_logit(head)) * want[g][i], "sum");
    }
  }
}

struct Sums {
  std::vector<double> numerator, denominator, shift;
  friend bool operator==(const Sums&, const Sums&) = default;
};

// Against the exact driver's sums, which test_device_dense.cpp holds against their definition; each
// has a shift of its own.
void check_piece(const KvHead& head, const MatrixD& queries, SumPiece piece, double most) {
  const Sums got =
      on_every_machine(head, [&](HostMachine& machine, const auto& tensors, const auto& scales) {
        const PartialSums sums = partial_sums_fast(machine, tensors, scales, queries, piece);
        EXPECT_EQ(sums.numerator.cols(), head.dv());
        return Sums{flat(sums.numerator), sums.denominator, sums.shift};
      });
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const PartialSums want = partial_sums_on(machine, tensors, queries, piece);
  SumPiece all = piece;
  all.part = Part::denominator;
  const std::vector<double> total = partial_sums_on(machine, tensors, queries, all).denominator;
  const double weight = weight_error(most);
  ASSERT_EQ(got.numerator.size(), static_cast<std::size_t>(queries.rows() * head.dv()));
  for (std::size_t r = 0; r < got.shift.size(); ++r) {
    const auto row = static_cast<Index>(r);
    expect_near(got.shift[r], want.shift[r], weight, "shift");
    const double by = got.shift[r] == -kInfinity ? 1.0 : std::exp(got.shift[r] - want.shift[r]);
    expect_near(got.denominator[r] * by, want.denominator[r], weight * total[r], "denominator");
    // Values are of size 1 or less, but for a few.
    for (Index c = 0; c < head.dv(); ++c) {
      expect_near(got.numerator[static_cast<std::size_t>(row * head.dv() + c)] * by,
                  want.numerator.row(row)[c], 4.0 * weight * total[r], "numerator");
    }
  }
}

TEST(FastPartialSums, EveryKindOfPiece) {
  unsigned seed = 200;
  for (const Case& c : kCases) {
    const DType type = kTypes[seed % 3];
    SCOPED_TRACE(text(c, type));
    const KvHead head = head_of(c, type, seed);
    const KvHead other = head_of(c, DType::float32, seed + 1000);
    ++seed;
    const Index m = std::min<Index>(c.nq, 35);
    const MatrixD queries = scaled_queries(head, 0, m);
    const SumPieces pieces(head, other, m);
    const double most = std::max(most_logit(head), most_logit(other));
    for (std::size_t p = 0; p < pieces.list().size(); ++p) {
      SCOPED_TRACE("piece " + std::to_string(p));
      check_piece(head, queries, pieces.list()[p], most);
    }
  }
}

TEST(FastPartialSums, ManyRowsAndPanels) {
  const KvHead head = head_of({1200, 200, 20, 30, 1}, DType::float16, 230);
  const KvHead other = head_of({1200, 1, 20, 30, 1}, DType::float32, 231);
  const std::vector<Index> all = positions(0, 1200);
  const std::vector<float> weights(1200, 0.3F);
  const double most = std::max(most_logit(head), most_logit(other));
  const MatrixD queries = scaled_queries(head, 0, 200);
  check_piece(head, queries, {head.k, head.v, all, {}, 1.0F, Part::both, 1001}, most);
  check_piece(head, queries, {other.k, other.v, all, weights, 1.0F, Part::both, 1001}, most);
}

TEST(FastPartialSums, TinyAndHugeWeights) {
  const KvHead head = head_of({40, 4, 8, 4, 1}, DType::float16, 232);
  std::vector<float> weights(40, 1e-45F);  // the least float
  weights[7] = 3e38F;
  weights[9] = 1e38F;
  const MatrixD queries = scaled_queries(head, 0, 4);
  // Log weights of +-100 are added to logits in float32.
  check_piece(head, queries, {head.k, head.v, positions(0, 40), weights, 1.0F, Part::both, {}},
              most_logit(head) + 100.0);
  weights[7] = weights[9] = 1e-45F;
  check_piece(head, queries, {head.k, head.v, positions(0, 40), weights, 1.0F, Part::both, {}},
              most_logit(head) + 100.0);
}

}  // namespace
}  // namespace kvbench
