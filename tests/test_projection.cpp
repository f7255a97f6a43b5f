// Output projections and residual norms of a trace: read as they were written in every type and
// layout, refused where they do not fit the layer. What methods get: test_projection_run.cpp.

#include <utility>

#include "make_trace.hpp"
#include "spoiled.hpp"

namespace kvbench::test_projection {
namespace {

using testing_replay::made_projection;
using namespace testing_traces;

constexpr const char* kLayer = "/prompts/a/layers/0";
constexpr hsize_t kHidden = 11;
constexpr hsize_t kColumns = 6 * 9;  // of Shape: query heads times width of values

// Writes [rows, columns] planted values as o_proj, and leaves all else alone.
void put_o_proj(hid_t layer, std::vector<hsize_t> sizes, DType type, const Storage& storage = {}) {
  H5Ldelete(layer, "o_proj", H5P_DEFAULT);
  hsize_t count = 1;
  for (const hsize_t size : sizes) {
    count *= size;
  }
  const hsize_t columns = sizes.back();
  put_stored(layer, "o_proj", sizes, type, storage,
             planted_bytes('o', {1, count / columns, columns}, type, storage.big_endian));
}

void put_norms(hid_t layer, const std::vector<float>& norms, hid_t type = H5T_IEEE_F32LE) {
  put_values(layer, "residual_norm", {norms.size()}, type, H5T_NATIVE_FLOAT, norms);
}

void expect_planted(const TraceReader& reader, const Shape& s) {
  ASSERT_EQ(reader.meta().prompts[0].layers[0].hidden, static_cast<Index>(kHidden));
  for (Index h = 0; h < s.kv_heads; ++h) {
    const Matrix w = reader.read_o_proj(0, 0, h);
    ASSERT_EQ(w.rows(), static_cast<Index>(kHidden));
    ASSERT_EQ(w.cols(), 2 * s.dv);  // two query heads for each KV head
    for (Index r = 0; r < w.rows(); ++r) {
      for (Index c = 0; c < w.cols(); ++c) {
        ASSERT_EQ(w.row(r)[c], planted('o', 0, r, h * 2 * s.dv + c)) << h << " " << r << " " << c;
      }
    }
  }
}

// ------------------------------------------------------------------------------------- reading

TEST(Projection, EveryTypeAndLayoutGivesItsColumns) {
  using Layout = Storage::Layout;
  const std::vector<Storage> storages{
      {},
      {Layout::contiguous, {}, true, false, {}, false},
      {Layout::compact, {}, false, false, {}, false},
      chunked({kHidden, 9}, {shuffle, gzip}),
      chunked({kHidden, 9}, {shuffle, gzip}, true),
      chunked({4, 7}, {gzip}),
      chunked({kHidden, kColumns}, {checksum}),
      chunked({1, 1}),
  };
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    for (const DType stored : {type, DType::float32}) {
      for (std::size_t i = 0; i < storages.size(); ++i) {
        const std::string path = planted_trace("t.h5", type);
        alter(path, kLayer, [&](hid_t layer) {
          put_o_proj(layer, {kHidden, kColumns}, stored, storages[i]);
        });
        SCOPED_TRACE(std::string(name(type)) + " as " + std::string(name(stored)) + ", layout " +
                     std::to_string(i));
        expect_planted(TraceReader(path), Shape{});
      }
    }
  }
}

TEST(Projection, IsReadAsItWasWritten) {
  constexpr Index kRows = 1030;  // more than one chunk
  const Matrix w = made_projection(kRows, 4 * 3, 0);
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    for (const int gzip : {0, 4}) {
      const std::string path = temporary_path("t.h5");
      TraceHeader header;
      header.dtype = type;
      header.gzip_level = gzip;
      TraceWriter writer(path, header);
      writer.begin_prompt("p0", 3);
      LayerSpec spec;
      spec.q_heads = 4;
      spec.kv_heads = 2;
      spec.nq = 2;
      spec.dv = 3;
      EXPECT_THROW(writer.write_o_proj(w), InputError);  // before its layer
      writer.begin_layer(spec);
      writer.write_o_proj(w);
      for (Index h = 0; h < 4; ++h) {
        writer.write_q(h, Matrix(2, 1));
      }
      for (Index h = 0; h < 2; ++h) {
        writer.write_k(h, Matrix(3, 1));
        writer.write_v(h, Matrix(3, 3));
      }
      const std::vector<float> norms{0.0F, 3.1415927F};
      writer.write_residual_norm(norms);
      writer.close();
      const TraceReader reader(path);
      EXPECT_EQ(reader.meta().prompts[0].layers[0].hidden, kRows);
      EXPECT_TRUE(reader.meta().prompts[0].layers[0].has_residual_norm);
      EXPECT_EQ(reader.read_residual_norm(0, 0), norms);
      for (Index h = 0; h < 2; ++h) {
        const Matrix got = reader.read_o_proj(0, 0, h);
        ASSERT_EQ(got.cols(), 2 * 3);
        for (Index r = 0; r < kRows; ++r) {
          ASSERT_TRUE(std::equal(got.row(r), got.row(r) + 6, w.row(r) + 6 * h)) << h << " " << r;
        }
      }
    }
  }
}

TEST(Projection, LayersMayHaveNeither) {
  const TraceReader reader(planted_trace("t.h5"));
  EXPECT_EQ(reader.meta().prompts[0].layers[0].hidden, 0);
  EXPECT_FALSE(reader.meta().prompts[0].layers[0].has_residual_norm);
  EXPECT_EQ(reader.read_o_proj(0, 0, 0).rows(), 0);
  EXPECT_TRUE(reader.read_residual_norm(0, 0).empty());
  EXPECT_THROW(reader.read_o_proj(0, 0, 3), InputError);
  EXPECT_THROW(reader.read_o_proj(0, 1, 0), InputError);
  EXPECT_THROW(reader.read_residual_norm(1, 0), InputError);
}

TEST(Projection, AreIgnoredInPartialTraces) {
  const std::string path = planted_trace("t.h5");
  alter(path, kLayer, [](hid_t layer) {
    put_o_proj(layer, {kHidden, kColumns}, DType::float16);
    put_norms(layer, std::vector<float>(37, 2.0F));
    H5Ldelete(layer, "v", H5P_DEFAULT);
  });
  const auto layer_of = [&path] {
    const TraceReader reader(path, Require::keys);
    validate_values(reader);
    return reader.meta().prompts[0].layers[0];
  };
  EXPECT_EQ(layer_of().hidden, 0);
  EXPECT_TRUE(layer_of().has_residual_norm);
  alter(path, kLayer, [](hid_t layer) { H5Ldelete(layer, "q", H5P_DEFAULT); });
  EXPECT_EQ(layer_of().hidden, 0);
  EXPECT_FALSE(layer_of().has_residual_norm);
}

TEST(Projection, TheWriterRefusesWhatTheReaderWould) {
  TraceHeader header;
  header.dtype = DType::float16;
  TraceWriter writer(temporary_path("t.h5"), header);
  writer.begin_prompt("p0", 2);
  LayerSpec spec;
  spec.q_heads = 2;
  spec.nq = 2;
  spec.dv = 3;
  writer.begin_layer(spec);
  EXPECT_THROW(writer.write_o_proj(Matrix(4, 5)), InputError);
  EXPECT_THROW(writer.write_o_proj(Matrix(0, 6)), InputError);
  Matrix large(4, 6);
  large.row(3)[1] = 7e4F;  // infinite as a half
  EXPECT_THROW(writer.write_o_proj(large), InputError);
  writer.write_o_proj(Matrix(4, 6));
  EXPECT_THROW(writer.write_o_proj(Matrix(4, 6)), InputError);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& bad :
       {std::vector<float>{1.0F}, {1.0F, -1.0F}, {nan, 1.0F}, {1.0F, 1.0F, 1.0F}}) {
    EXPECT_THROW(writer.write_residual_norm(bad), InputError);
  }
  writer.write_residual_norm(std::vector<float>{1.0F, 0.0F});
  EXPECT_THROW(writer.write_residual_norm(std::vector<float>{1.0F, 0.0F}), InputError);
}

// ------------------------------------------------------------------------------------ refusals

TEST(Projection, RefusesWhatDoesNotFitTheLayer) {
  const auto matrix = [](std::vector<hsize_t> sizes, DType type = DType::float16) {
    return [=](hid_t layer) { put_o_proj(layer, sizes, type); };
  };
  const auto bare = [](const char* name, const std::vector<hsize_t>& sizes) {
    return bare_dataset(name, sizes, H5T_IEEE_F32LE);
  };
  const auto norms = [](std::size_t count, hid_t type = H5T_IEEE_F32LE) {
    return [=](hid_t layer) { put_norms(layer, std::vector<float>(count, 1.0F), type); };
  };
  // All of these are found when the file is opened.
  expect_refusals(
      {
          {kLayer, matrix({kHidden, kColumns + 1}), {"o_proj", "[11, 55]", "[hidden, 6 * 9]"}},
          {kLayer, matrix({kColumns, kHidden}), {"o_proj", "[54, 11]", "[hidden, 6 * 9]"}},
          {kLayer,
           matrix({6, kHidden, 9}),
           {"o_proj", "rank is 3, expected 2: [hidden, q_heads * dv]"}},
          {kLayer, matrix({kColumns}), {"o_proj", "rank is 1, expected 2"}},
          {kLayer,
           matrix({kHidden, kColumns}, DType::bfloat16),
           {"o_proj",
            "elements are uint16, expected 16-bit IEEE float for dtype float16, or 32-bit"}},
          {kLayer,
           bare("o_proj", {0, kColumns}),
           {"o_proj", "shape is [0, 54], expected sizes of at least 1"}},
          {kLayer,
           bare("o_proj", {hsize_t{1} << 54, kColumns}),
           {"o_proj", "product that fits memory"}},
          {kLayer, bare("o_proj", {kHidden, kColumns}), {"o_proj", "holds 0 bytes, expected 2376"}},
          {kLayer, norms(36), {"residual_norm", "holds 36 norms, expected nq = 37"}},
          {kLayer,
           norms(37, H5T_IEEE_F64LE),
           {"residual_norm", "64-bit float", "expected 32-bit IEEE float"}},
          {kLayer,
           bare("residual_norm", {37, 1}),
           {"residual_norm", "rank is 2, expected 1: [nq]"}},
          {kLayer, bare("residual_norm", {37}), {"residual_norm", "holds 0 bytes, expected 148"}},
          {kLayer,
           [](hid_t layer) {
             H5Gclose(H5Gcreate2(layer, "o_proj", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
           },
           {"o_proj", "dataset"}},
      },
      [] { return planted_trace("t.h5"); }, [](const std::string& path) { TraceReader{path}; });
}

TEST(Projection, RefusesValuesThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<Spoiled> cases;
  for (const auto& [bad, text] : {std::pair{nan, "nan"}, {-infinity, "-inf"}}) {
    // The last column of the second KV head: 18 to 35 are its own.
    std::vector<float> values(kHidden * kColumns, 1.0F);
    values[10 * kColumns + 35] = bad;
    cases.push_back({kLayer,
                     [=](hid_t layer) {
                       put_values(layer, "o_proj", {kHidden, kColumns}, H5T_IEEE_F32LE,
                                  H5T_NATIVE_FLOAT, values);
                     },
                     {"/layers/0/o_proj", std::string("row 10, column 35 is ") + text}});
  }
  for (const auto& [bad, text] : {std::pair{nan, "nan"}, {infinity, "inf"}, {-0.5F, "-0.5"}}) {
    std::vector<float> norms(37, 1.0F);
    norms[11] = bad;
    // Row 11 is the query at token n - nq + 11.
    cases.push_back({kLayer,
                     [=](hid_t layer) { put_norms(layer, norms); },
                     {"/layers/0/residual_norm", std::string("token 74 is ") + text}});
  }
  expect_refusals(cases, [] { return planted_trace("t.h5"); });
}

}  // namespace
}  // namespace kvbench::test_projection
