// Writer: what was written is read back, rounded to the element type; files appear only whole.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/float16.hpp"
#include "hdf5_values.hpp"
#include "trace/reader.hpp"
#include "trace/writer.hpp"
#include "trace_files.hpp"

namespace kvbench::test_trace_writer {
namespace {

using testing_traces::temporary_path;

constexpr Index kTokens = 1500;  // more than one chunk, the last one partial

Matrix wavy(Index rows, Index cols, double phase) {
  Matrix m(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    m.data()[i] = static_cast<float>(3 * std::sin(0.37 * static_cast<double>(i) + phase));
  }
  return m;
}

LayerSpec small_layer() {
  LayerSpec layer;
  layer.layer = 3;
  layer.q_heads = 4;
  layer.kv_heads = 2;
  layer.nq = 40;
  layer.d = 24;
  layer.dv = 16;
  return layer;
}

void write_heads(TraceWriter& writer, const LayerSpec& layer, Index n) {
  for (Index h = 0; h < layer.kv_heads; ++h) {
    writer.write_v(h, wavy(n, layer.dv, static_cast<double>(200 + h)));
    writer.write_k(h, wavy(n, layer.d, static_cast<double>(100 + h)));
  }
  for (Index h = layer.q_heads - 1; h >= 0; --h) {  // any order will do
    writer.write_q(h, wavy(layer.nq, layer.d, static_cast<double>(h)));
  }
}

void expect_wavy(const Matrix& got, double phase, DType type) {
  Matrix expected = wavy(got.rows(), got.cols(), phase);
  round_to(type, expected.data(), got.rows() * got.cols());
  for (Index i = 0; i < got.rows() * got.cols(); ++i) {
    ASSERT_EQ(got.data()[i], expected.data()[i]) << i;
  }
}

TEST(TraceWriter, RoundTrip) {
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    for (const int gzip : {0, 1, 9}) {
      const std::string path = temporary_path("t.h5");
      TraceHeader header;
      header.model = "m";
      header.source = "s";
      header.created = "c";
      header.rope = "none";
      header.dtype = type;
      header.scale = 0.5;
      header.gzip_level = gzip;
      TraceWriter writer(path, header);
      const std::vector<std::int32_t> ids(kTokens, 5);
      writer.begin_prompt("one", kTokens, "text/1", ids);
      LayerSpec layer = small_layer();
      layer.scale = 0.25;
      layer.fisher = 1.5;
      layer.retrieval_heads = {1, 0};
      layer.sink_logit = {0.5F, -2.0F, 3.25F, 0.0F};
      layer.window = 17;
      writer.begin_layer(layer);
      write_heads(writer, layer, kTokens);
      writer.begin_prompt("two", 41);
      layer = small_layer();
      writer.begin_layer(layer);
      write_heads(writer, layer, 41);
      EXPECT_FALSE(std::filesystem::exists(path));
      writer.close();
      EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));

      const TraceReader reader(path);
      const TraceMeta& meta = reader.meta();
      EXPECT_EQ(meta.model, "m");
      EXPECT_EQ(meta.source, "s");
      EXPECT_EQ(meta.created, "c");
      EXPECT_EQ(meta.rope, "none");
      EXPECT_EQ(meta.dtype, type);
      EXPECT_EQ(meta.scale, 0.5);
      ASSERT_EQ(meta.prompts.size(), 2U);
      EXPECT_EQ(meta.prompts[0].text_id, "text/1");
      EXPECT_EQ(reader.read_token_ids(0), ids);
      const LayerMeta& first = meta.prompts[0].layers.at(0);
      EXPECT_EQ(first.layer, 3);
      EXPECT_EQ(first.scale, 0.25);
      EXPECT_EQ(first.fisher, 1.5);
      EXPECT_EQ(first.retrieval_heads, (std::vector<std::uint8_t>{1, 0}));
      EXPECT_EQ(first.sink_logit, (std::vector<float>{0.5F, -2.0F, 3.25F, 0.0F}));
      EXPECT_EQ(first.window, 17);
      EXPECT_TRUE(meta.prompts[1].layers.at(0).sink_logit.empty());
      EXPECT_FALSE(meta.prompts[1].layers.at(0).window.has_value());
      EXPECT_EQ(meta.prompts[1].layers.at(0).scale, 0.5);
      for (std::size_t p = 0; p < 2; ++p) {
        for (Index h = 0; h < 2; ++h) {
          const KvHead head = reader.read_head(p, 0, h);
          EXPECT_EQ(head.window, p == 0 ? 17 : 0);
          const auto own = first.sink_logit.begin() + 2 * h;
          EXPECT_EQ(head.sink_logit,
                    p == 0 ? std::vector<float>(own, own + 2) : std::vector<float>());
          expect_wavy(head.k, static_cast<double>(100 + h), type);
          const auto slow = testing_traces::hdf5_head(
              path, "/prompts/" + meta.prompts[p].id + "/layers/3/k", type, h, head.n(), head.d());
          EXPECT_TRUE(std::equal(slow.begin(), slow.end(), head.k.data()));
          expect_wavy(head.v, static_cast<double>(200 + h), type);
          expect_wavy(head.q.at(0), static_cast<double>(2 * h), type);
          expect_wavy(head.q.at(1), static_cast<double>(2 * h + 1), type);
        }
      }
      std::filesystem::remove(path);
    }
  }
}

TEST(TraceWriter, LeavesNothingBehindWithoutClose) {
  const std::string path = temporary_path("t.h5");
  std::ofstream(path) << "old";
  {
    TraceWriter writer(path, {});
    writer.begin_prompt("a", 41);
    writer.begin_layer(small_layer());
    EXPECT_TRUE(std::filesystem::exists(path + ".tmp"));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(std::filesystem::file_size(path), 3U);
}

TEST(TraceWriter, RefusesMisuse) {
  const std::string path = temporary_path("t.h5");
  TraceHeader header;
  header.rope = "pre";
  EXPECT_THROW(TraceWriter(path, header), InputError);
  header = {};
  header.scale = 0.0;
  EXPECT_THROW(TraceWriter(path, header), InputError);
  header = {};
  header.gzip_level = 10;
  EXPECT_THROW(TraceWriter(path, header), InputError);

  TraceWriter writer(path, {});
  EXPECT_THROW(writer.begin_layer(small_layer()), InputError);
  EXPECT_THROW(writer.write_k(0, wavy(1, 1, 0)), InputError);
  EXPECT_THROW(writer.close(), InputError);
  EXPECT_THROW(writer.begin_prompt("", 41), InputError);
  EXPECT_THROW(writer.begin_prompt("a/b", 41), InputError);
  EXPECT_THROW(writer.begin_prompt("a", 0), InputError);
  EXPECT_THROW(writer.begin_prompt("a", 2, "", std::vector<std::int32_t>{1}), InputError);
  writer.begin_prompt("a", 41);
  EXPECT_THROW(writer.begin_prompt("b", 41), InputError);  // "a" has no layers

  const auto refused = [&writer](auto change) {
    LayerSpec layer = small_layer();
    change(layer);
    EXPECT_THROW(writer.begin_layer(layer), InputError);
  };
  refused([](LayerSpec& l) { l.layer = -1; });
  refused([](LayerSpec& l) { l.q_heads = 3; });
  refused([](LayerSpec& l) { l.kv_heads = 0; });
  refused([](LayerSpec& l) { l.nq = 42; });
  refused([](LayerSpec& l) { l.scale = NAN; });
  refused([](LayerSpec& l) { l.fisher = -1; });
  refused([](LayerSpec& l) { l.retrieval_heads = {1}; });
  refused([](LayerSpec& l) { l.sink_logit = {1.0F}; });
  refused([](LayerSpec& l) { l.sink_logit.assign(l.q_heads, NAN); });
  refused([](LayerSpec& l) { l.window = 0; });
}

TEST(TraceWriter, ChecksHeads) {
  const std::string path = temporary_path("t.h5");
  TraceWriter writer(path, {});
  writer.begin_prompt("a", 41);
  const LayerSpec layer = small_layer();
  writer.begin_layer(layer);
  EXPECT_THROW(writer.write_k(2, wavy(41, layer.d, 0)), InputError);
  EXPECT_THROW(writer.write_k(0, wavy(40, layer.d, 0)), InputError);
  EXPECT_THROW(writer.write_k(0, wavy(41, layer.dv, 0)), InputError);
  Matrix large = wavy(41, layer.d, 0);
  large.row(7)[2] = 65520;  // rounds to infinity in half
  EXPECT_THROW(writer.write_k(0, large), InputError);
  large.row(7)[2] = NAN;
  EXPECT_THROW(writer.write_k(0, large), InputError);
  EXPECT_THROW(writer.close(), InputError);  // heads are missing
  write_heads(writer, layer, 41);
  EXPECT_THROW(writer.write_k(0, wavy(41, layer.d, 0)), InputError);  // twice
  EXPECT_THROW(writer.begin_layer(layer), InputError);                // the same index again
  writer.close();
  EXPECT_THROW(writer.close(), InputError);
  EXPECT_EQ(TraceReader(path).meta().prompts.size(), 1U);
}

TEST(TraceWriter, ReportsWhereItCannotWrite) {
  EXPECT_THROW(TraceWriter(temporary_path("absent_folder/t.h5"), {}), IoError);
}

}  // namespace
}  // namespace kvbench::test_trace_writer
