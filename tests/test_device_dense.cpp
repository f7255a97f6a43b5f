// Dense attention by block kernels, run on a machine of the CPU, against the functions of the CPU:
// every line that a GPU runs, in two orders of threads and blocks, whole and cut into pieces.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "attention/device_on.hpp"
#include "attention/estimator.hpp"
#include "attention/exact.hpp"
#include "attention/scores.hpp"
#include "make_head.hpp"
#include "sum_pieces.hpp"

namespace kvbench {
namespace {

// Logits below 30 from d <= 256 products, sums of n <= 4200 terms: relative to the sum of their
// absolute values, 30 d 2^-53 + n 2^-53 bounds either side; what is seen stays below 1e-13.
constexpr double kRounding = 1e-12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  Index n, nq, d, dv, group;
};

// Odd sizes around every tile: 32 queries, 64 and 128 keys or channels, 512 tokens.
const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1},     {2, 1, 3, 64, 2},      {7, 7, 64, 80, 3},    {65, 40, 80, 64, 2},
    {129, 33, 96, 3, 8}, {513, 3, 128, 128, 1}, {200, 5, 129, 65, 2}, {140, 66, 256, 96, 1},
};

KvHead head_of(const Case& c, unsigned seed) {
  HeadShape shape;
  shape.n = c.n;
  shape.nq = c.nq;
  shape.d = c.d;
  shape.dv = c.dv;
  shape.group = c.group;
  shape.key_norm = 8.0;
  return make_head(shape, seed);
}

// |got - want| <= kRounding * size, false for NaN.
void expect_near(double got, double want, double size, const std::string& what) {
  if (got == want) {
    return;  // also -inf
  }
  EXPECT_TRUE(std::abs(got - want) <= kRounding * size) << what << ": " << got << " " << want;
}

std::string text(const Case& c) {
  return "n " + std::to_string(c.n) + " nq " + std::to_string(c.nq) + " d " + std::to_string(c.d) +
         " dv " + std::to_string(c.dv) + " group " + std::to_string(c.group);
}

std::vector<double> flat(const MatrixD& m) {
  return {m.data(), m.data() + m.rows() * m.cols()};
}

// What any order of blocks and threads and any size of scratch must give, to the bit. `row`: bytes
// of a row of logits; pieces of 3 rows and of 40, and for little work one by one.
template <class F>
auto on_every_machine(Index row_bytes, const F& f) {
  HostMachine machine;
  const auto whole = f(machine);
  HostMachine small(HostMachine::Order::backward);
  EXPECT_TRUE(f(small) == whole) << "threads race";
  for (const Index bytes : {3 * row_bytes, 40 * row_bytes, Index{1}}) {
    if (bytes > 1 || row_bytes < 100) {
      small.set_scratch_bytes(static_cast<std::size_t>(bytes));
      EXPECT_TRUE(f(small) == whole) << "scratch " << bytes;
    }
  }
  return whole;
}

struct Exact {
  std::vector<double> output, log_z, p_norm, mass;
  std::vector<std::uint8_t> noticed;
  friend bool operator==(const Exact&, const Exact&) = default;
};

Exact exact_of(const ExactAttention& a) {
  return {flat(a.output), a.log_z, a.p_norm, a.mass, a.noticed};
}

void check_exact(const KvHead& head, Index g, const std::vector<Index>& positions) {
  const Exact got = on_every_machine(8 * head.n(), [&](HostMachine& machine) {
    return exact_of(exact_attention_on(machine, HeadTensors<HostMachine>(machine, head), g,
                                       std::span<const Index>(positions)));
  });
  const Exact want = exact_of(exact_attention(head, g, positions, 1));
  ASSERT_EQ(got.output.size(), want.output.size());
  ASSERT_EQ(got.mass.size(), want.mass.size());
  for (std::size_t i = 0; i < want.output.size(); ++i) {
    expect_near(got.output[i], want.output[i], 1.0, "output");  // values are of size 1 or less
  }
  for (std::size_t r = 0; r < positions.size(); ++r) {
    expect_near(got.log_z[r], want.log_z[r], 1.0 + std::abs(want.log_z[r]), "log_z");
    expect_near(got.p_norm[r], want.p_norm[r], want.p_norm[r], "p_norm");
  }
  for (std::size_t i = 0; i < want.mass.size(); ++i) {
    expect_near(got.mass[i], want.mass[i], want.mass[i], "mass");
  }
  EXPECT_EQ(got.noticed, want.noticed);  // no probability of these is at the threshold's rounding
}

TEST(ExactAttentionOn, EqualsTheCpu) {
  unsigned seed = 1;
  for (const Case& c : kCases) {
    SCOPED_TRACE(text(c));
    const KvHead head = head_of(c, seed++);
    check_exact(head, c.group - 1, positions(c.n - c.nq, c.n));
  }
}

TEST(ExactAttentionOn, TakesAnyPositionsInTheirOrder) {
  const KvHead head = head_of({600, 600, 5, 9, 2}, 20);
  check_exact(head, 1, {599, 0, 37, 37, 300, 511, 512, 513});
  std::vector<Index> many = positions(0, 600);
  std::reverse(many.begin(), many.end());
  check_exact(head, 0, many);
}

TEST(ExactAttentionOn, LongRows) {
  // More than one chunk of 4096 logits, and channels beyond one stage of 128.
  const KvHead head = head_of({4200, 1, 130, 1, 1}, 22);
  check_exact(head, 0, {4199});
}

TEST(ExactAttentionOn, LargeLogitsStayFinite) {
  KvHead head = head_of({200, 40, 8, 8, 1}, 21);
  head.scale *= 500.0;  // logits of +-10^4: most weights underflow
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const std::vector<Index> last = positions(160, 200);
  const ExactAttention got = exact_attention_on(machine, tensors, 0, last);
  const ExactAttention want = exact_attention(head, 0, last, 1);
  for (Index r = 0; r < 40; ++r) {
    for (Index c = 0; c < 8; ++c) {
      // Relative errors of weights are those of logits, absolute: 10^4 times as large.
      EXPECT_TRUE(std::abs(got.output.row(r)[c] - want.output.row(r)[c]) <= 1e-9);
    }
  }
}

TEST(AttentionSumsOn, EqualsTheCpu) {
  unsigned seed = 40;
  for (const Case& c : kCases) {
    SCOPED_TRACE(text(c));
    const KvHead head = head_of(c, seed++);
    const Index start = c.n - c.nq;
    const Index middle = start + c.nq / 2;
    // All queries, with positions before the first; the later half; none.
    for (const Range queries : {Range{0, c.n}, Range{middle, c.n}, Range{0, start}}) {
      const auto got = on_every_machine(8 * head.n(), [&](HostMachine& machine) {
        return attention_sums_on(machine, HeadTensors<HostMachine>(machine, head), queries);
      });
      const auto want = attention_sums(head, queries);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t g = 0; g < want.size(); ++g) {
        ASSERT_EQ(got[g].size(), want[g].size());
        for (std::size_t i = 0; i < want[g].size(); ++i) {
          expect_near(got[g][i], want[g][i], want[g][i], "sum");
        }
      }
    }
  }
}

TEST(AttentionSumsOn, ManyBlocksOfQueries) {
  const KvHead head = head_of({300, 290, 5, 4, 2}, 60);
  const auto got = on_every_machine(8 * head.n(), [&](HostMachine& machine) {
    return attention_sums_on(machine, HeadTensors<HostMachine>(machine, head), {0, 300});
  });
  const auto want = attention_sums(head, {0, 300});
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t i = 0; i < 300; ++i) {
      expect_near(got[g][i], want[g][i], want[g][i], "sum");
    }
  }
}

struct Sums {
  std::vector<double> numerator, denominator, shift;
  friend bool operator==(const Sums&, const Sums&) = default;
};

// A piece in long double, straight from the definition.
Sums slow_sums(const MatrixD& queries, const SumPiece& piece, Index dv) {
  Sums out;
  for (Index r = 0; r < queries.rows(); ++r) {
    std::vector<long double> logit(piece.rows.size(), -kInfinity);
    long double top = -kInfinity;
    for (std::size_t i = 0; i < piece.rows.size(); ++i) {
      const float w = piece.weights.empty() ? piece.common : piece.weights[i];
      const bool seen = !piece.visible_from || piece.rows[i] < *piece.visible_from + r;
      if (w > 0.0F && seen) {
        logit[i] = std::log(static_cast<long double>(w));
        for (Index t = 0; t < queries.cols(); ++t) {
          logit[i] += static_cast<long double>(queries.row(r)[t]) *
                      static_cast<long double>(piece.keys.row(piece.rows[i])[t]);
        }
        top = std::max(top, logit[i]);
      }
    }
    std::vector<long double> numerator(static_cast<std::size_t>(dv), 0.0L);
    long double denominator = 0.0L;
    for (std::size_t i = 0; i < piece.rows.size(); ++i) {
      const long double e = logit[i] == -kInfinity ? 0.0L : std::exp(logit[i] - top);
      denominator += piece.part == Part::numerator ? 0.0L : e;
      for (Index c = 0; piece.part != Part::denominator && c < dv; ++c) {
        numerator[static_cast<std::size_t>(c)] +=
            e * static_cast<long double>(piece.values.row(piece.rows[i])[c]);
      }
    }
    for (const long double x : numerator) {
      out.numerator.push_back(static_cast<double>(x));
    }
    out.denominator.push_back(static_cast<double>(denominator));
    out.shift.push_back(static_cast<double>(top));
  }
  return out;
}

void check_piece(const KvHead& head, const MatrixD& queries, const SumPiece& piece) {
  const Sums got = on_every_machine(8 * head.n(), [&](HostMachine& machine) {
    const PartialSums sums =
        partial_sums_on(machine, HeadTensors<HostMachine>(machine, head), queries, piece);
    EXPECT_EQ(sums.numerator.rows(), queries.rows());
    EXPECT_EQ(sums.numerator.cols(), head.dv());
    return Sums{flat(sums.numerator), sums.denominator, sums.shift};
  });
  const Sums want = slow_sums(queries, piece, head.dv());
  ASSERT_EQ(got.numerator.size(), want.numerator.size());
  ASSERT_EQ(got.denominator.size(), want.denominator.size());
  ASSERT_EQ(got.shift.size(), want.shift.size());
  const auto count = static_cast<double>(piece.rows.size());
  for (std::size_t i = 0; i < want.numerator.size(); ++i) {
    expect_near(got.numerator[i], want.numerator[i], count, "numerator");  // weights are 1 or less
  }
  for (std::size_t r = 0; r < want.shift.size(); ++r) {
    expect_near(got.denominator[r], want.denominator[r], count, "denominator");
    expect_near(got.shift[r], want.shift[r], 10.0, "shift");
  }
}

TEST(PartialSumsOn, EveryKindOfPiece) {
  unsigned seed = 80;
  for (const Case& c : kCases) {
    SCOPED_TRACE(text(c));
    const KvHead head = head_of(c, seed);
    const KvHead other = head_of(c, seed + 1000);
    ++seed;
    const Index m = std::min<Index>(c.nq, 35);
    const MatrixD queries = scaled_queries(head, 0, m);
    const SumPieces pieces(head, other, m);
    for (std::size_t p = 0; p < pieces.list().size(); ++p) {
      SCOPED_TRACE("piece " + std::to_string(p));
      check_piece(head, queries, pieces.list()[p]);
    }
  }
}

TEST(PartialSumsOn, NothingSeenIsMinusInfinityAndZero) {
  const KvHead head = head_of({70, 5, 8, 4, 1}, 90);
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const std::vector<Index> rows = positions(3, 70);
  // Rows below 2 + r: queries 0 and 1 see none of 3, 4, ...
  const PartialSums sums = partial_sums_on(machine, tensors, scaled_queries(head, 0, 5),
                                           {head.k, head.v, rows, {}, 1.0F, Part::both, 2});
  for (std::size_t r = 0; r < 5; ++r) {
    EXPECT_EQ(sums.shift[r] == -kInfinity, r < 2);
    EXPECT_EQ(sums.denominator[r], r < 2 ? 0.0 : sums.denominator[r]);
    EXPECT_EQ(sums.denominator[r] >= 1.0, r >= 2);
    for (Index c = 0; c < 4; ++c) {
      EXPECT_TRUE(std::isfinite(sums.numerator.row(static_cast<Index>(r))[c]));
    }
  }
}

TEST(PartialSumsOn, TinyAndHugeWeightsAndLogits) {
  KvHead head = head_of({40, 4, 8, 4, 1}, 91);
  MatrixD queries = scaled_queries(head, 0, 4);
  for (Index i = 0; i < 32; ++i) {
    queries.data()[i] *= 300.0;  // logits of some thousand
  }
  const std::vector<Index> rows = positions(0, 40);
  std::vector<float> weights(40, 1e-45F);  // the least float
  weights[7] = 3e38F;
  const SumPiece piece{head.k, head.v, rows, weights, 1.0F, Part::both, {}};
  HostMachine machine;
  const HeadTensors<HostMachine> tensors(machine, head);
  const PartialSums got = partial_sums_on(machine, tensors, queries, piece);
  const Sums want = slow_sums(queries, piece, 4);
  for (std::size_t r = 0; r < 4; ++r) {
    // Logits of some 10^3: their rounding is that much larger.
    EXPECT_TRUE(std::abs(got.denominator[r] - want.denominator[r]) <= 1e-9);
    EXPECT_TRUE(std::abs(got.shift[r] - want.shift[r]) <= 1e-9);
  }
}

// Arrays of scratch stay within what the machine says, where a row of logits does.
class Watched : public HostMachine {
 public:
  void* allocate(std::size_t bytes) {
    largest_ = std::max(largest_, bytes);
    return HostMachine::allocate(bytes);
  }
  std::size_t take_largest() { return std::exchange(largest_, 0); }

 private:
  std::size_t largest_ = 0;
};

TEST(Dense, ArraysStayWithinScratch) {
  const KvHead head = head_of({1500, 40, 128, 60, 1}, 92);
  const KvHead other = head_of({1500, 40, 128, 60, 1}, 93);
  Watched machine;
  const HeadTensors<Watched> tensors(machine, head);
  const MatrixD queries = scaled_queries(head, 0, 40);
  const std::vector<Index> rows = positions(0, 1500);
  const std::vector<Index> last = positions(1460, 1500);
  for (const std::size_t bytes : {150'000U, 400'000U}) {
    machine.set_scratch_bytes(bytes);
    machine.take_largest();
    exact_attention_on(machine, tensors, 0, last);
    EXPECT_LE(machine.take_largest(), bytes);
    attention_sums_on(machine, tensors, {0, 1500});
    EXPECT_LE(machine.take_largest(), bytes);
    partial_sums_on(machine, tensors, queries, {other.k, other.v, rows, {}, 2.0F, Part::both, {}});
    EXPECT_LE(machine.take_largest(), bytes);
  }
}

using PlayedHead = DeviceHeadOn<HostMachine>;

TEST(OnDevice, SumsOfManyPiecesEqualTheCpu) {
  const KvHead head = head_of({400, 37, 32, 24, 2}, 94);
  const KvHead made = head_of({9, 1, 32, 24, 2}, 95);
  const PlayedHead device(HostMachine(), head);
  const MatrixD queries = scaled_queries(head, 1, 37);
  std::vector<Index> some;
  for (Index i = 20; i < 330; i += 3) {
    some.push_back(i);
  }
  const std::vector<Index> all_made = positions(0, 9);
  const std::vector<float> weights{1.0F, 0.0F, 3.0F, 0.5F, 7.0F, 2.0F, 1.0F, 9.0F, 4.0F};
  const auto fill = [&](SoftmaxSums sums) {
    sums.add_rows(Matrix(), Matrix(), {}, {}, 1.0F, Part::both);  // a method that made no token
    sums.add_causal(head, {390, 400});
    sums.add_causal(head, {0, 4});
    sums.add_causal(head, {4, 4});
    sums.add_rows(head.k, head.v, some, {}, 3.0F, Part::both);
    SoftmaxSums copy = sums;
    copy.add_rows(head.k, head.v, some, {}, 0.0F, Part::both);
    copy.add_rows(made.k, made.v, all_made, weights, 1.0F, Part::numerator);
    copy.add_rows(made.k, MatrixView{}, all_made, weights, 1.0F, Part::denominator);
    return copy;
  };
  const SoftmaxSums want = fill(SoftmaxSums(queries, 24));
  const SoftmaxSums got = fill(SoftmaxSums(queries, 24, &device));
  Index degenerate_got = 0;
  Index degenerate_want = 0;
  const MatrixD z_got = got.output(degenerate_got);
  const MatrixD z_want = want.output(degenerate_want);
  EXPECT_EQ(degenerate_got, degenerate_want);
  for (Index r = 0; r < 37; ++r) {
    for (Index c = 0; c < 24; ++c) {
      expect_near(z_got.row(r)[c], z_want.row(r)[c], 1.0, "z");
    }
    const auto at = static_cast<std::size_t>(r);
    expect_near(got.log_denominator()[at], want.log_denominator()[at], 10.0, "log denominator");
  }
}

TEST(OnDevice, NothingAddedIsDegenerate) {
  const KvHead head = head_of({50, 6, 8, 4, 1}, 96);
  const PlayedHead device(HostMachine(), head);
  const MatrixD queries = scaled_queries(head, 0, 6);
  SoftmaxSums sums(queries, 4, &device);
  sums.add_rows(head.k, head.v, positions(0, 50), {}, 0.0F, Part::both);
  Index degenerate = 0;
  EXPECT_TRUE(std::isnan(sums.output(degenerate).row(0)[0]));
  EXPECT_EQ(degenerate, 6);
  EXPECT_EQ(sums.log_denominator()[5], -kInfinity);
}

TEST(OnDevice, FunctionsAndBooksAskTheDevice) {
  const KvHead head = head_of({90, 50, 8, 4, 2}, 97);
  const PlayedHead device(HostMachine(), head);
  const std::vector<Index> last = positions(60, 90);
  EXPECT_TRUE(exact_of(exact_attention(head, 1, 30, 1, &device)) ==
              exact_of(device.exact_attention(1, last)));
  EXPECT_TRUE(exact_of(exact_attention(head, 1, last, 1, &device)) ==
              exact_of(device.exact_attention(1, last)));
  EXPECT_EQ(attention_sums(head, {50, 90}, &device), device.attention_sums({50, 90}));
  EXPECT_EQ(ScoreBook(head, &device).sums({50, 90}), device.attention_sums({50, 90}));
}

}  // namespace
}  // namespace kvbench
