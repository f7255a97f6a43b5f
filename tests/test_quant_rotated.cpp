// quant-rotated: codes against the definition, bytes against a file of them, the sign residual's
// mean, what a budget picks, exempt layers.
#include "algorithms/grid.hpp"
#include "algorithms/shared/lloyd_max.hpp"
#include "algorithms/shared/rotated_codes.hpp"
#include "algorithms/shared/size.hpp"
#include "method_checks.hpp"
#include "read_rows.hpp"
#include "reference/rotated.hpp"

namespace kvbench::test_quant_rotated {
namespace {

KvHead test_head() {
  return make_rounded_head({.n = 200, .d = 16, .dv = 8, .key_offset = 2.0, .dtype = DType::float16},
                           5);
}

std::vector<double> signs_of(const RngStream& stream, Index d) {
  std::vector<double> out;
  for (Index c = 0; c < d; ++c) {
    out.push_back(stream.uniform(static_cast<std::uint64_t>(c)) < 0.5 ? -1.0 : 1.0);
  }
  return out;
}

reference::Rows gaussian(const RngStream& stream, Index d) {
  reference::Rows out(d, reference::Vec(d));
  for (Index i = 0; i < d * d; ++i) {
    out[i / d][i % d] = static_cast<reference::Real>(stream.normal(static_cast<std::uint64_t>(i)));
  }
  return out;
}

reference::Vec mean_of(const reference::Rows& rows, bool centred, DType dtype) {
  reference::Vec out(rows[0].size(), 0);
  for (std::size_t c = 0; c < out.size() && centred; ++c) {
    for (const reference::Vec& row : rows) {
      out[c] += row[c];
    }
    out[c] = static_cast<reference::Real>(
        round_to(dtype, static_cast<float>(out[c] / static_cast<reference::Real>(rows.size()))));
  }
  return out;
}

class QuantRotated : public ::testing::Test {
 protected:
  Compressed run(const Given& given, std::optional<Index> budget = {}) const {
    return JobOf("quant-rotated", head_, tokens_, {0, 100}).run(budget, given);
  }
  Rng rng() const { return {1, {"p", 0, 0}, "quant-rotated"}; }

  KvHead head_ = test_head();
  std::vector<Index> tokens_ = positions(10, 147);
};

// Codes, norms and means packed by the reference weigh to the byte what the method says.
TEST_F(QuantRotated, EqualsTheReferenceAndItsBytes) {
  const std::vector<double> k_signs = signs_of(rng().stream("key-rotation"), head_.d());
  const std::vector<double> v_signs = signs_of(rng().stream("value-rotation"), head_.dv());
  const reference::Rows keys = reference::rows_of(copy_rows(head_.k, tokens_));
  const reference::Rows values = reference::rows_of(copy_rows(head_.v, tokens_));
  for (const bool centred : {false, true}) {
    for (const bool unit : {false, true}) {
      for (const auto& [k_bits, v_bits] : {std::pair{1, 3}, {2, 2}, {3, 1}, {4, 8}}) {
        const Compressed c = run({{"k_bits", std::to_string(k_bits)},
                                  {"v_bits", std::to_string(v_bits)},
                                  {"center", centred ? "mean" : "none"},
                                  {"correct", unit ? "norm" : "none"}});
        const reference::RotatedRows k = reference::rotated_rows(
            keys, reference::hadamard(k_signs), unit_codebook(k_bits, head_.d()).levels,
            mean_of(keys, centred, head_.dtype), unit);
        const reference::RotatedRows v = reference::rotated_rows(
            values, reference::hadamard(v_signs), unit_codebook(v_bits, head_.dv()).levels,
            mean_of(values, centred, head_.dtype), unit);
        expect_rows(c.made.k, k.rows);
        expect_rows(c.made.v, v.rows);
        EXPECT_EQ(static_cast<Index>(reference::packed(k.codes, k_bits).size() +
                                     reference::packed(v.codes, v_bits).size()),
                  *c.payload_bytes);
        // Two float16 norms a token, and the means.
        EXPECT_EQ(c.aux_bytes, 137 * 4 + (centred ? (16 + 8) * 2 : 0));
        EXPECT_EQ(c.quantized, 137);
        EXPECT_TRUE(c.held.tokens.empty());
      }
    }
  }
}

// Bytes of a token at d = 128 beside those of vLLM's turboquant presets: 196, 136, 120, 104. vLLM
// stores a value's scale and zero point (2 bytes more than a norm) and pads to 4 bytes.
TEST(QuantRotatedBytes, AreThoseOfEnginesLessTheirPadding) {
  const Quantizer quantizer = find_method("quant-rotated").quantizer.value();
  const auto bytes = [&](const char* k_bits, const char* v_bits) {
    const Params params("quant-rotated", quantizer.params,
                        {{"k_bits", k_bits}, {"v_bits", v_bits}});
    return quantizer.bytes({128, 128, 2}, 1, params);
  };
  EXPECT_EQ(bytes("8", "4"), 196);
  EXPECT_EQ(bytes("4", "4"), 136 - 2 - 2);
  EXPECT_EQ(bytes("3", "4"), 120 - 2 - 2);
  EXPECT_EQ(bytes("3", "3"), 104 - 2 - 2);
}

TEST_F(QuantRotated, SignResidualEqualsTheReference) {
  const Rng rng = this->rng();
  const reference::Rows keys = reference::rows_of(copy_rows(head_.k, tokens_));
  for (const int bits : {1, 3}) {
    const Compressed c =
        run({{"k_bits", std::to_string(bits)}, {"v_bits", "2"}, {"residual", "sign"}});
    const reference::RotatedRows coded = reference::rotated_rows(
        keys, reference::hadamard(signs_of(rng.stream("key-rotation"), head_.d())),
        bits == 1 ? std::vector<double>{} : unit_codebook(bits - 1, head_.d()).levels,
        reference::Vec(16, 0), true);
    expect_rows(c.made.k,
                reference::with_signs(keys, coded.rows, gaussian(rng.stream("sketch"), head_.d())));
    // At one bit the norm of the residual is the key's, and stored once.
    EXPECT_EQ(c.aux_bytes, 137 * ((bits == 1 ? 2 : 4) + 2));
    EXPECT_EQ(*c.payload_bytes, 137 * 16 * bits / 8 + 137 * 8 * 2 / 8);
  }
}

// Over 10,000 sketches the mean inner product with a query is the exact one, to five standard
// errors; without the residual it is off by many times that.
TEST(SignResidual, InnerProductsAreUnbiased) {
  std::mt19937_64 generator(3);
  const Index d = 16;
  const Matrix key = normal_matrix(1, d, 4.0, generator);
  Matrix query = normal_matrix(1, d, 1.0, generator);
  for (Index c = 0; c < d; ++c) {
    query.data()[c] += key.data()[c];
  }
  const auto product = [&](const Matrix& k) {
    double sum = 0.0;
    for (Index c = 0; c < d; ++c) {
      sum += static_cast<double>(k.data()[c]) * static_cast<double>(query.data()[c]);
    }
    return sum;
  };
  const double exact = product(key);
  for (const int bits : {1, 2}) {
    double sum = 0.0;
    double square = 0.0;
    const int draws = 10000;
    RotatedFormat format{.bits = bits, .rotation = RotationKind::none, .signs = true};
    for (int i = 0; i < draws; ++i) {
      const Rng rng(static_cast<std::uint64_t>(i), {"p", 0, 0}, "test");
      const double x =
          product(rotated_codes(key, format, DType::float32, {}, rng.stream("sketch")));
      sum += x;
      square += x * x;
    }
    const double mean = sum / draws;
    const double error = std::sqrt((square / draws - mean * mean) / draws);
    // |r| is float16: within 2^-11 of the residual's share.
    EXPECT_TRUE(std::abs(mean - exact) <= 5.0 * error + 0x1p-11 * std::abs(exact) + 0.01)
        << bits << " " << mean << " " << exact << " " << error;
    if (bits == 2) {
      format.bits = 1;
      format.signs = false;
      const double coded = product(rotated_codes(key, format, DType::float32, {}, {}));
      EXPECT_GT(std::abs(coded - exact), 5.0 * error);
    }
  }
}

TEST(Rotations, AreOrthogonalAndInvert) {
  for (const RotationKind kind :
       {RotationKind::hadamard, RotationKind::orthogonal, RotationKind::none}) {
    for (const Index d : {1, 2, 16, 64}) {
      const Rotation turn(kind, d, Rng(4, {"p", 1, 2}, "test").stream("rotation"));
      for (Index a = 0; a < d; ++a) {
        std::vector<double> x(d, 0.0);
        x[a] = 3.0;
        turn.apply(x);
        double norm = 0.0;
        for (const double value : x) {
          norm += value * value;
        }
        ASSERT_TRUE(std::abs(norm - 9.0) <= 1e-12);
        turn.invert(x);
        for (Index c = 0; c < d; ++c) {
          ASSERT_TRUE(std::abs(x[c] - (c == a ? 3.0 : 0.0)) <= 1e-13);
        }
      }
    }
  }
  EXPECT_THROW(Rotation(RotationKind::hadamard, 12, {}), std::logic_error);
}

// Measured distortion of Gaussian keys is that of the published table, and its 4^bits multiple is
// what the paper bounds by sqrt(3) pi / 2.
TEST(RotatedCodes, DistortionOfGaussianVectors) {
  std::mt19937_64 generator(8);
  const Index d = 128;
  const Matrix x = normal_matrix(400, d, 1.0, generator);
  const std::vector<double> published = {0.36, 0.117, 0.03, 0.009};
  for (int bits = 1; bits <= 4; ++bits) {
    const RotatedFormat format{
        .bits = bits, .rotation = RotationKind::hadamard, .unit_norm = false};
    const Matrix coded =
        rotated_codes(x, format, DType::float32, Rng(1, {"p", 0, 0}, "t").stream("rotation"), {});
    double error = 0.0;
    double norm = 0.0;
    for (Index i = 0; i < 400 * d; ++i) {
      const double e = static_cast<double>(coded.data()[i] - x.data()[i]);
      error += e * e;
      norm += static_cast<double>(x.data()[i]) * static_cast<double>(x.data()[i]);
    }
    // The table has two digits, 51,200 coordinates give 1 % more.
    const double p = published[static_cast<std::size_t>(bits - 1)];
    EXPECT_TRUE(error / norm >= 0.95 * p && error / norm <= 1.16 * p)
        << bits << " " << error / norm;
    EXPECT_TRUE(error / norm * std::pow(4.0, bits) <= std::sqrt(3.0) * M_PI / 2.0);
  }
}

TEST_F(QuantRotated, TheBudgetPicksTheMostBits) {
  const Index full = 137 * head_.pair_bytes();
  const auto bits_at = [&](double rho) {
    const auto budget = static_cast<Index>(rho * static_cast<double>(full));
    const Compressed c = run({}, budget);
    EXPECT_LE(*c.payload_bytes + c.aux_bytes, budget);
    return diag_text(c, "k_bits") + "/" + diag_text(c, "v_bits");
  };
  // 24 channels at b bits and two norms: (3 b + 4) of 48 bytes.
  EXPECT_EQ(bits_at(1.0), "8/8");
  EXPECT_EQ(bits_at(28.0 / 48.0 + 1e-6), "8/8");
  EXPECT_EQ(bits_at(28.0 / 48.0 - 1e-4), "7/7");
  EXPECT_EQ(bits_at(16.0 / 48.0 + 1e-6), "4/4");
  EXPECT_EQ(bits_at(7.0 / 48.0 + 1e-6), "1/1");
  EXPECT_EQ(needed_bytes([&] { run({}, full / 8); }), 137 * 7);
  EXPECT_THROW(run({}), InputError);
}

// keys=pre codes what the tables un-rotate: with 8 bits nothing is lost either way, with few bits a
// bias that every un-rotated key shares costs nothing once it is taken off.
TEST_F(QuantRotated, UnrotatedKeys) {
  JobOf job("quant-rotated", head_, tokens_, {0, 100}, /*equipped=*/true);
  Matrix& k = const_cast<KvHead&>(job.head()).k;
  std::vector<double> row(head_.d());
  for (Index i = 0; i < k.rows(); ++i) {
    for (Index c = 0; c < head_.d(); ++c) {
      row[c] = 20.0 + static_cast<double>(head_.k.row(i)[c]);
    }
    rotate(*job.rope, i, row, {k.row(i), row.size()});
  }
  const auto error = [&](const char* keys, const char* center) {
    return diag_number(
        job.run({}, {{"k_bits", "3"}, {"v_bits", "3"}, {"keys", keys}, {"center", center}}),
        "k_error");
  };
  const double pre = error("pre", "mean");
  EXPECT_TRUE(pre > 0.0 && pre < 0.02) << pre;
  EXPECT_TRUE(error("post", "mean") > 5.0 * pre);
  EXPECT_TRUE(error("pre", "none") > 5.0 * pre);
  EXPECT_TRUE(diag_number(job.run({}, {{"k_bits", "8"}, {"v_bits", "8"}, {"keys", "pre"}}),
                          "k_error") < 0.02);
}

TEST(QuantRotatedSpec, Refusals) {
  for (const char* bad : {"quant-rotated:k_bits=4", "quant-rotated:v_bits=4",
                          "quant-rotated:k_bits=0;v_bits=4", "quant-rotated:k_bits=9;v_bits=4",
                          "quant-rotated:rotation=givens", "h2o@quant-rotated:exempt=1"}) {
    EXPECT_THROW(expand_algorithms({bad}), InputError) << bad;
  }
  LayerFacts layer{.n = 64, .d = 80, .dv = 64};
  const auto resolve = [&](const char* spec) {
    return expand_algorithms({spec}).front().resolved(layer);
  };
  EXPECT_THROW(resolve("quant-rotated"), InputError);  // 80 is no power of two
  EXPECT_THROW(resolve("h2o@quant-rotated"), InputError);
  EXPECT_NO_THROW(resolve("quant-rotated:rotation=orthogonal"));
}

}  // namespace
}  // namespace kvbench::test_quant_rotated
