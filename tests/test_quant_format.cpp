// quant-format: codes against the definition, bytes against a file of them, sizes.
#include "algorithms/grid.hpp"
#include "algorithms/shared/kv_formats.hpp"
#include "algorithms/shared/size.hpp"
#include "method_checks.hpp"
#include "read_rows.hpp"
#include "reference/kv_formats.hpp"

namespace kvbench::test_quant_format {
namespace {

const std::vector<std::string> kScales = {"one", "head", "token"};

// Rows of many magnitudes, among them zeros, equal numbers, ties and what float16 does not hold.
Matrix odd_rows() {
  std::mt19937_64 generator(3);
  Matrix out(12, 64);
  for (Index i = 0; i < 12; ++i) {
    const Matrix row =
        normal_matrix(1, 64, 8.0 * std::pow(10.0, static_cast<double>(i - 5)), generator);
    std::copy_n(row.data(), 64, out.row(i));
  }
  std::fill_n(out.row(0), 64, 0.0F);
  std::fill_n(out.row(1), 64, -3.0F);
  for (Index c = 0; c < 64; ++c) {
    out.row(2)[c] = static_cast<float>(c - 32) / 4.0F;  // ties of E2M1 and E4M3
    out.row(3)[c] = (c % 2 == 0 ? 7.0F : -7.0F);        // equal magnitudes of both signs
    out.row(4)[c] = 1e-41F * static_cast<float>(c);     // whose inverse scale is infinite
  }
  return out;
}

TEST(KvFormats, EqualTheReferenceForOddRows) {
  const Matrix x = odd_rows();
  for (const std::string& type : kv_format_names()) {
    for (std::size_t s = 0; s < kScales.size(); ++s) {
      SCOPED_TRACE(type + " " + kScales[s]);
      Matrix made = x;
      read_back(kv_format(type), static_cast<Fp8Scale>(s), made);
      // Also alone: a scale of the head would otherwise be that of the largest row.
      for (Index i = 0; i < x.rows(); ++i) {
        Matrix alone(1, 64);
        std::copy_n(x.row(i), 64, alone.row(0));
        const reference::Rows row = reference::rows_of(alone);
        read_back(kv_format(type), static_cast<Fp8Scale>(s), alone);
        expect_rows(alone, reference::stored_rows(type, row, kScales[s]).rows, 0);
      }
      expect_rows(made, reference::stored_rows(type, reference::rows_of(x), kScales[s]).rows, 0);
    }
  }
}

TEST(KvFormats, HugeNumbersStayFinite) {
  const float most = std::numeric_limits<float>::max();
  for (const std::string& type : kv_format_names()) {
    for (std::size_t s = 0; s < kScales.size(); ++s) {
      Matrix x(1, 32);
      for (Index c = 0; c < 32; ++c) {
        x.row(0)[c] = c == 0 ? 1.0F : c % 2 == 0 ? most : -most;
      }
      read_back(kv_format(type), static_cast<Fp8Scale>(s), x);
      for (Index c = 0; c < 32; ++c) {
        EXPECT_TRUE(std::isfinite(x.row(0)[c])) << type << " " << c;
      }
    }
  }
}

KvHead test_head() {
  return make_rounded_head(
      {.n = 120, .d = 96, .dv = 64, .key_offset = 2.0, .dtype = DType::float16}, 5);
}

class QuantFormat : public ::testing::Test {
 protected:
  Compressed run(const Given& given, std::optional<Index> budget = {}) const {
    return job_.run(budget, given);
  }
  reference::Rows rows(MatrixView m) const { return reference::rows_at(m, job_.tokens()); }

  JobOf job_{"quant-format", test_head(), positions(10, 97), {0, 100}};
};

TEST_F(QuantFormat, EqualsTheReferenceAndItsFile) {
  const std::vector<std::string>& names = kv_format_names();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string& k_type = names[i];
    const std::string& v_type = names[(i + 3) % names.size()];
    for (const std::string& scale : kScales) {
      SCOPED_TRACE(k_type + " " + v_type + " " + scale);
      const Compressed c = run({{"k_type", k_type}, {"v_type", v_type}, {"fp8_scale", scale}});
      const reference::StoredRows k = reference::stored_rows(k_type, rows(job_.head().k), scale);
      const reference::StoredRows v = reference::stored_rows(v_type, rows(job_.head().v), scale);
      expect_rows(c.made.k, k.rows, 0);
      expect_rows(c.made.v, v.rows, 0);
      EXPECT_EQ(static_cast<std::size_t>(*c.payload_bytes + c.aux_bytes),
                k.bytes.size() + v.bytes.size());
      EXPECT_EQ(c.quantized, 87);
      EXPECT_EQ(c.made.positions, job_.tokens());
      EXPECT_TRUE(c.held.tokens.empty());
    }
  }
}

// Keys of 96 channels turn in blocks of 32, values of 64 in one.
TEST_F(QuantFormat, TurnsByTheHadamardMatrix) {
  for (const std::string type : {"q4_0", "int8", "f16"}) {
    SCOPED_TRACE(type);
    const Compressed c = run({{"k_type", type}, {"v_type", type}, {"rotate", "hadamard"}});
    const auto expected = [&](MatrixView m, std::size_t block) {
      if (type == "f16") {
        return reference::stored_rows(type, rows(m), "one").rows;
      }
      return reference::turned(
          reference::stored_rows(type, reference::turned(rows(m), block), "one").rows, block);
    };
    expect_rows(c.made.k, expected(job_.head().k, 32));
    expect_rows(c.made.v, expected(job_.head().v, 64));
  }
}

TEST_F(QuantFormat, HasItsOwnSizeWhichMustFitABudget) {
  // Per token: 96 + 64 channels in 5 blocks of 34 bytes.
  const Index size = 87 * 5 * 34;
  const Compressed c = run({});
  EXPECT_EQ(*c.payload_bytes + c.aux_bytes, size);
  EXPECT_EQ(*run({}, size).payload_bytes, *c.payload_bytes);
  EXPECT_EQ(needed_bytes([&] { run({}, size - 1); }), size);
}

TEST(QuantFormatSpec, StoresWhatAnotherMethodHolds) {
  const KvHead head = test_head();
  const auto compressed = [&](const std::string& spec, std::optional<Index> budget) {
    const Variant variant = expand_algorithms({spec}).front();
    const std::vector<Index> tokens = positions(10, 97);
    const ScoreBook book(head);
    Task task{head, tokens, budget, {0, 100}, {}, Rng(1, {"p", 0, 0}, "test")};
    task.scores = &book;
    return variant.method->compress(task, variant.params);
  };
  const std::string format = "quant-format:k_type=nvfp4;v_type=fp8;fp8_scale=head";
  const Compressed alone = compressed(format, {});
  const Compressed all = compressed("exact@" + format, {});
  expect_rows(all.made.k, reference::rows_of(alone.made.k), 0);
  expect_rows(all.made.v, reference::rows_of(alone.made.v), 0);
  EXPECT_EQ(*all.payload_bytes + all.aux_bytes, *alone.payload_bytes + alone.aux_bytes);
  // 96 channels at 9 bytes of 16, 64 of fp8, and the head's two scales.
  const Index token = 96 / 16 * 9 + 64;
  EXPECT_EQ(compressed("h2o@" + format, 20 * token + 8).made.k.rows(), 20);
  EXPECT_EQ(compressed("h2o@" + format, 20 * token + 7).made.k.rows(), 19);
}

TEST(QuantFormatSpec, Refusals) {
  for (const char* bad : {"quant-format:k_type=q3_0", "quant-format:rotate=givens",
                          "quant-format:fp8_scale=row", "quant-format:tokens=4"}) {
    EXPECT_THROW(expand_algorithms({bad}), InputError) << bad;
  }
  LayerFacts layer{.n = 64, .d = 80, .dv = 64};
  const auto message = [&](const char* spec) -> std::string {
    try {
      expand_algorithms({spec}).front().resolved(layer);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message("quant-format"),
            "quant-format: k_type=q8_0 codes blocks of 32 channels, got 80 channels of keys");
  EXPECT_NE(message("h2o@quant-format:v_type=fp8"), "");
  EXPECT_EQ(message("quant-format:k_type=nvfp4"), "");
  EXPECT_EQ(message("quant-format:k_type=fp8;v_type=mxfp4"), "");
}

}  // namespace
}  // namespace kvbench::test_quant_format
