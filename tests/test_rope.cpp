// Rotary tables: un-rotating undoes the rotation, /rope is read as it was written and refused where
// it is none, and expected-attention with tables equals its definition.
#include "reference/expected_attention.hpp"
#include "replay_run.hpp"
#include "selection_checks.hpp"
#include "trace/reader.hpp"
#include "trace_files.hpp"

namespace kvbench::test_rope {
namespace {

namespace fs = std::filesystem;
using namespace testing_replay;

// Tables and rows are float32; the rotation back is float64.
constexpr double kFloat = 1e-6;
// Logits reach some tens in long double and float64.
constexpr reference::Real kRounding = 1e-11L;

TEST(Rope, UnrotateUndoesTheModelsRotation) {
  for (const RopeLayout layout : {RopeLayout::half, RopeLayout::interleaved}) {
    for (const Index dim : {2, 6, 8}) {
      for (const double factor : {1.0, 1.3}) {
        const RopeTables tables = rope_tables(50, dim, layout, 100.0, factor);
        const std::vector<double> x = {0.5, -1.25, 2.0, 3.5, -0.75, 1.0, 4.0, -2.0};
        for (const Index p : {0, 1, 17, 49}) {
          // Written out as models do it: rotate_half, or the even and odd channels.
          std::vector<float> turned(x.begin(), x.end());
          for (Index t = 0; t < dim / 2; ++t) {
            const auto a = static_cast<std::size_t>(layout == RopeLayout::half ? t : 2 * t);
            const auto b =
                static_cast<std::size_t>(layout == RopeLayout::half ? t + dim / 2 : 2 * t + 1);
            const double c = static_cast<double>(tables.cos.row(p)[t]);
            const double s = static_cast<double>(tables.sin.row(p)[t]);
            turned[a] = static_cast<float>(x[a] * c - x[b] * s);
            turned[b] = static_cast<float>(x[b] * c + x[a] * s);
          }
          std::vector<double> back(8);
          unrotate(tables, p, turned, back);
          for (std::size_t i = 0; i < 8; ++i) {
            ASSERT_TRUE(std::abs(back[i] - x[i]) <= kFloat * 8) << dim << " " << p << " " << i;
          }
        }
      }
    }
  }
}

TEST(Rope, PairsAreTheUnrotatedChannels) {
  const std::vector<float> row = {0.5F, -1.25F, 2.0F, 3.5F, -0.75F, 1.0F, 4.0F, -2.0F};
  for (const RopeLayout layout : {RopeLayout::half, RopeLayout::interleaved}) {
    const RopeTables tables = rope_tables(50, 6, layout, 100.0, 1.3);
    std::vector<double> back(8);
    unrotate(tables, 33, row, back);
    const auto pairs = unrotated_pairs(tables, 33, row);
    ASSERT_EQ(pairs.size(), 3U);
    for (Index t = 0; t < 3; ++t) {
      // Two orders of the same products.
      EXPECT_NEAR(pairs[t].real(), back[tables.first(t)], 1e-14);
      EXPECT_NEAR(pairs[t].imag(), back[tables.second(t)], 1e-14);
    }
  }
}

// Angles are float32, so position 1 alone is off by up to 2^-24 a position.
TEST(Rope, FrequenciesAreRefinedByEveryDoubling) {
  constexpr double kFar = 65536.0;
  const RopeTables tables = rope_tables(65537, 64, RopeLayout::half, 10000.0, 1.2);
  const std::vector<double> w = frequencies(tables);
  ASSERT_EQ(w.size(), 32U);
  double most = 0.0;
  for (Index t = 0; t < 32; ++t) {
    const double exact = std::pow(10000.0, -2.0 * static_cast<double>(t) / 64.0);
    EXPECT_NEAR(w[t] * kFar, exact * kFar, 3e-7);
    const double first = std::atan2(static_cast<double>(tables.sin.row(1)[t]),
                                    static_cast<double>(tables.cos.row(1)[t]));
    most = std::max(most, std::abs(first - exact) * kFar);
  }
  EXPECT_GT(most, 1e-4);
}

class RopeTrace : public ReplayTest {
 protected:
  // A trace of 40 tokens, changed by `change` after it was written.
  std::string trace(const std::function<void(hid_t)>& change, Index positions = 40 + 512,
                    Index dim = 8) {
    const std::string path =
        make_trace(folder_ / "rope.h5",
                   {.tokens = {40}, .layers = {0, 3}, .rope = rope_tables(positions, dim)});
    testing_traces::alter(path, "/", change);
    return path;
  }

  static void set(hid_t file, const char* dataset, Index at, float value) {
    const testing_traces::Id data = H5Dopen2(file, dataset, H5P_DEFAULT);
    const testing_traces::Id space = H5Dget_space(data);
    hsize_t dims[2];
    H5Sget_simple_extent_dims(space, dims, nullptr);
    std::vector<float> all(dims[0] * dims[1]);
    H5Dread(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data());
    all[at] = value;
    H5Dwrite(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data());
    H5Adelete(data, "sha256");  // it is of the values before
  }
};

TEST_F(RopeTrace, IsReadAsItWasWritten) {
  const RopeTables want = rope_tables(552, 8);
  const TraceReader reader(trace([](hid_t) {}));
  const LayerMeta& layer = reader.meta().prompts[0].layers[1];
  EXPECT_EQ(layer.rope_positions, 552);
  EXPECT_EQ(layer.rope_dim, 8);
  const auto got = reader.read_rope(0, 1);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->layout, RopeLayout::half);
  EXPECT_TRUE(std::equal(want.cos.data(), want.cos.data() + 552 * 4, got->cos.data()));
  EXPECT_TRUE(std::equal(want.sin.data(), want.sin.data() + 552 * 4, got->sin.data()));
  EXPECT_EQ(reader.read_rope(0, 0), got);  // shared while it is held
}

TEST_F(RopeTrace, LayersMayHaveTheirOwnOrNone) {
  const fs::path path = folder_ / "layers.h5";
  TraceHeader header;
  header.gzip_level = 0;
  TraceWriter writer(path.string(), header);
  writer.begin_prompt("p0", 4);
  for (const Index l : {0, 1}) {
    LayerSpec spec;
    spec.layer = l;
    spec.nq = 4;
    spec.d = 6;
    spec.dv = 2;
    writer.begin_layer(spec);
    writer.write_q(0, Matrix(4, 6));
    writer.write_k(0, Matrix(4, 6));
    writer.write_v(0, Matrix(4, 2));
  }
  writer.write_rope(rope_tables(516, 4, RopeLayout::interleaved), 1);
  EXPECT_THROW(writer.write_rope(rope_tables(516, 4), 1), InputError);
  EXPECT_THROW(writer.write_rope(rope_tables(516, 4)), InputError);
  RopeTables nan = rope_tables(516, 4);
  nan.sin.row(3)[1] = std::nanf("");
  expect_refusal([&] { writer.write_rope(nan, 2); }, "not finite");
  writer.close();
  const TraceReader reader(path.string());
  EXPECT_EQ(reader.read_rope(0, 0), nullptr);
  EXPECT_EQ(reader.meta().prompts[0].layers[0].rope_positions, 0);
  ASSERT_NE(reader.read_rope(0, 1), nullptr);
  EXPECT_EQ(reader.read_rope(0, 1)->layout, RopeLayout::interleaved);
  EXPECT_EQ(reader.meta().prompts[0].layers[1].rope_dim, 4);
}

TEST_F(RopeTrace, RefusesWhatAreNoTables) {
  const auto refuses = [&](const std::string& path, const std::string& words) {
    expect_refusal([&] { const TraceReader reader(path); }, words);
  };
  refuses(trace([](hid_t) {}, 551), "holds 551 positions, expected at least n + 512");
  refuses(trace([](hid_t) {}, 552, 10), "turns 10 channels, expected at most the 8");
  refuses(trace([](hid_t f) { H5Ldelete(f, "/rope/sin", H5P_DEFAULT); }), "/rope/sin");
  refuses(trace([](hid_t f) { H5Adelete_by_name(f, "/rope", "layout", H5P_DEFAULT); }), "layout");
  refuses(trace([](hid_t f) {
            H5Ldelete(f, "/rope/sin", H5P_DEFAULT);
            H5Lcreate_hard(f, "/prompts/p0/layers/0/q", f, "/rope/sin", H5P_DEFAULT, H5P_DEFAULT);
          }),
          "/rope/sin");
}

TEST_F(RopeTrace, RefusesValuesThatAreNoRotation) {
  const auto refuses = [&](const std::string& path, const std::string& words) {
    const TraceReader reader(path);
    expect_refusal([&] { reader.read_rope(0, 0); }, words);
  };
  refuses(trace([](hid_t f) { set(f, "/rope/cos", 9, std::nanf("")); }),
          "position 2, pair 1 is nan");
  refuses(trace([](hid_t f) {
            set(f, "/rope/cos", 3, 0.0F);
            set(f, "/rope/sin", 3, 0.0F);
          }),
          "position 0, pair 3: cos and sin are both 0");
}

TEST_F(RopeTrace, AutoIsResolvedInTheRow) {
  ReplayOptions o = basic("out.csv");
  o.traces = {trace([](hid_t) {})};
  o.algorithms = {"expected-attention", "h2o+expected-attention", "capkv"};
  o.budgets = {0.5};
  o.sink = 2;
  o.overwrite = true;
  run(o);
  for (const Fields& row : untimed(o.out)) {
    EXPECT_NE(row[column_index("params")].find("rope=tables"), std::string::npos);
    EXPECT_EQ(row[column_index("status")], "ok");
  }
  o.traces = {trace_};  // without tables
  run(o);
  for (const Fields& row : untimed(o.out)) {
    EXPECT_NE(row[column_index("params")].find("rope=post"), std::string::npos);
  }
  o.algorithms = {"expected-attention:rope=tables"};
  expect_refusal([&] { run(o); }, "needs the trace's rotary tables");
  o.algorithms = {"expected-attention:rope=auto,post"};
  expect_refusal([&] { run(o); }, "duplicate ");
  o.traces = {trace([](hid_t) {})};
  o.algorithms = {"expected-attention:n_future=520"};  // 40 - 8 + 520 = 552 fits
  EXPECT_EQ(run(o).failed, 0);
  o.algorithms = {"expected-attention:n_future=521"};
  expect_refusal([&] { run(o); }, "hold 552 positions, expected at least 553");
}

TEST(ExpectedAttentionTables, EqualsReference) {
  HeadShape shape{.n = 110, .nq = 70, .d = 10, .dv = 5, .group = 3};
  for (const double norm : {0.5, 3.0, 20.0}) {
    shape.key_norm = norm;
    const KvHead head = make_head(shape, 12);
    for (const auto& [layout, dim] : kRopeLayouts) {
      const RopeTables tables = rope_tables(110 + 512, dim, layout, 50.0, 1.2);
      const std::vector<Index> tokens = gappy(8, 90);
      for (const Range scoring : {Range{40, 100}, Range{45, 46}}) {
        for (const Given& given : settings("n_future=1,37,512;n_skip=0,44")) {
          JobOf job("expected-attention", head, tokens, scoring);
          job.rope = tables;
          expect_best_kept(job,
                           reference::expected_attention(
                               head, tokens, std::max(scoring.begin, index_in(given, "n_skip")),
                               scoring.end, &tables.cos, &tables.sin, layout == RopeLayout::half,
                               index_in(given, "n_future")),
                           kRounding, given);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_rope
