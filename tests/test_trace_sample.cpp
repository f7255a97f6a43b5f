// data/sample.h5 against figures computed with h5py and numpy, which share no code with the reader.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>

#include "trace/reader.hpp"

namespace kvbench {
namespace {

struct Expected {
  std::size_t layer;
  Index head;
  char what;
  double min;
  double max;
  double sum;  // of half values below 2^4 in magnitude: exact in double, whatever the order
};

constexpr Expected kExpected[] = {
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

// The figures above are printed with nine and twelve digits.
constexpr double kRelativeError = 1e-8;

TraceReader open_sample() {
  return TraceReader(KVBENCH_DATA_DIR "/sample.h5");
}

TEST(TraceSample, Shape) {
  const TraceReader reader = open_sample();
  const TraceMeta& meta = reader.meta();
  EXPECT_EQ(meta.dtype, DType::float16);
  EXPECT_EQ(meta.rope, "post");
  EXPECT_EQ(meta.created, "2026-11-20");
  ASSERT_EQ(meta.prompts.size(), 1U);
  const PromptMeta& prompt = meta.prompts[0];
  EXPECT_EQ(prompt.id, "news-0");
  EXPECT_EQ(prompt.text_id, "multi_news/170");
  EXPECT_EQ(prompt.n_tokens, 2048);
  ASSERT_EQ(prompt.layers.size(), 4U);
  for (std::size_t l = 0; l < 4; ++l) {
    const LayerMeta& layer = prompt.layers[l];
    EXPECT_EQ(layer.layer, static_cast<Index>(l));
    EXPECT_EQ(layer.q_heads, 4);
    EXPECT_EQ(layer.kv_heads, 2);
    EXPECT_EQ(layer.n, 2048);
    EXPECT_EQ(layer.nq, 2048);
    EXPECT_EQ(layer.d, 64);
    EXPECT_EQ(layer.dv, 64);
    EXPECT_EQ(layer.scale, 0.125);
  }
}

TEST(TraceSample, KeysAndValues) {
  const TraceReader reader = open_sample();
  for (const Expected& e : kExpected) {
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

TEST(TraceSample, QueriesAndTokens) {
  const TraceReader reader = open_sample();
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

}  // namespace
}  // namespace kvbench
