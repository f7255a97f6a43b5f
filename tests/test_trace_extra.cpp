// Extra queries and scores of a trace: what is stored comes back bit by bit, nothing is asked of a
// trace without them, and a wrong one is refused with its place.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "extra_traces.hpp"
#include "spoiled.hpp"

namespace kvbench::test_trace_extra {
namespace {

using namespace testing_traces;

constexpr const char* kLayer = "/prompts/a/layers/0";
constexpr const char* kSegment = "/prompts/a/layers/0/extra/repeat/1";

std::vector<float> counted(Index count, float step = 0.25F) {
  std::vector<float> out;
  for (Index i = 0; i < count; ++i) {
    out.push_back(step * static_cast<float>(i) - 3.0F);
  }
  return out;
}

// Two sets, `repeat` of two segments and `second` without attributes, and two scores.
std::string trace_with_extra(DType type = DType::float16) {
  const std::string path = planted_trace("t.h5", type);
  const Shape s;
  alter(path, kLayer, [&](hid_t layer) {
    SegmentParts first;
    first.queries = 7;
    first.from = 60;
    first.residual_norm = {1, 2, 0, 4, 5, 6, 7};
    first.prefix = 60;
    first.first = 0;
    first.last = 40;
    put_segment(layer, "repeat", 0, s, type, first, packed_storage());
    SegmentParts second = first;
    second.queries = 5;
    second.residual_norm.clear();
    second.positions = {60, 61, 63, 70, 2147483647};
    second.first = 40;
    second.last = 60;
    put_segment(layer, "repeat", 1, s, type, second);
    put_segment(layer, "second", 0, s, type, {});
    put_scores(layer, "gate.v1", s.kv_heads, s.n, counted(s.kv_heads * s.n), 60);
    put_scores(layer, "other", s.kv_heads, s.n, counted(s.kv_heads * s.n, -1.5F), {});
  });
  return path;
}

TEST(TraceExtra, ComesBackBitByBit) {
  for (const DType type : {DType::float16, DType::bfloat16, DType::float32}) {
    const TraceReader reader(trace_with_extra(type));
    const Shape s;
    for (Index h = 0; h < s.kv_heads; ++h) {
      const ExtraSet set = reader.read_extra(0, 0, "repeat", h);
      EXPECT_EQ(set.name, "repeat");
      ASSERT_EQ(set.segments.size(), 2U);
      for (std::size_t i = 0; i < 2; ++i) {
        const ExtraSegment& segment = set.segments[i];
        const Index m = i == 0 ? 7 : 5;
        ASSERT_EQ(segment.q.size(), 2U);
        for (const Matrix* rows : {&segment.k, &segment.q[0], &segment.q[1]}) {
          ASSERT_EQ(rows->rows(), m);
          ASSERT_EQ(rows->cols(), s.d);
        }
        expect_planted(segment.k, 'k', h);
        expect_planted(segment.q[0], 'q', 2 * h);
        expect_planted(segment.q[1], 'q', 2 * h + 1);
        EXPECT_EQ(segment.info.prefix, 60);
      }
      EXPECT_EQ(set.segments[0].positions, (std::vector<Index>{60, 61, 62, 63, 64, 65, 66}));
      EXPECT_EQ(set.segments[1].positions, (std::vector<Index>{60, 61, 63, 70, 2147483647}));
      EXPECT_EQ(set.segments[0].residual_norm, (std::vector<float>{1, 2, 0, 4, 5, 6, 7}));
      EXPECT_TRUE(set.segments[1].residual_norm.empty());
      const std::vector<float> gate = reader.read_scores(0, 0, "gate.v1", h).values;
      const std::vector<float> all = counted(s.kv_heads * s.n);
      EXPECT_EQ(gate, (std::vector<float>(all.begin() + h * s.n, all.begin() + (h + 1) * s.n)));
    }
  }
}

TEST(TraceExtra, IsListedWithoutReadingValues) {
  const TraceReader reader(trace_with_extra());
  const LayerMeta& layer = reader.meta().prompts[0].layers[0];
  ASSERT_EQ(layer.extra.size(), 2U);
  EXPECT_EQ(layer.extra[0].name, "repeat");
  ASSERT_EQ(layer.extra[0].segments.size(), 2U);
  EXPECT_EQ(layer.extra[0].queries(), 12);
  EXPECT_EQ(layer.extra[0].segments[0].about, (Range{0, 40}));
  EXPECT_EQ(layer.extra[0].segments[1].about, (Range{40, 60}));
  EXPECT_EQ(layer.extra[0].segments[1].prefix, 60);
  EXPECT_TRUE(layer.extra[0].segments[0].has_residual_norm);
  EXPECT_FALSE(layer.extra[0].segments[1].has_residual_norm);
  EXPECT_EQ(layer.extra[1].name, "second");
  EXPECT_FALSE(layer.extra[1].segments[0].prefix);
  EXPECT_FALSE(layer.extra[1].segments[0].about);
  ASSERT_EQ(layer.scores.size(), 2U);
  EXPECT_EQ(layer.scores[0].name, "gate.v1");
  EXPECT_EQ(layer.scores[0].prefix, 60);
  EXPECT_FALSE(layer.scores[1].prefix);
  EXPECT_NO_THROW(validate_values(reader));
}

TEST(TraceExtra, OfATraceWithoutIsRefused) {
  const TraceReader reader(planted_trace("t.h5"));
  EXPECT_TRUE(reader.meta().prompts[0].layers[0].extra.empty());
  EXPECT_TRUE(reader.meta().prompts[0].layers[0].scores.empty());
  testing_replay::expect_refusal([&] { reader.read_extra(0, 0, "repeat", 0); },
                                 "holds no extra queries 'repeat'");
  testing_replay::expect_refusal([&] { reader.read_scores(0, 0, "gate", 0); },
                                 "holds no scores 'gate'");
  EXPECT_THROW(reader.read_extra(0, 0, "repeat", 3), InputError);
}

TEST(TraceExtra, WithoutQueriesOfTheLayerItIsIgnored) {
  const std::string path = trace_with_extra();
  alter(path, kLayer, [](hid_t layer) { H5Ldelete(layer, "q", H5P_DEFAULT); });
  const TraceReader reader(path, Require::keys);
  EXPECT_TRUE(reader.meta().prompts[0].layers[0].extra.empty());
  EXPECT_EQ(reader.meta().prompts[0].layers[0].scores.size(), 2U);
  EXPECT_NO_THROW(validate_values(reader));
}

TEST(TraceExtra, ANanIsNamedAndThatOfAnotherHeadIsNotRead) {
  const std::string path = trace_with_extra();
  const Shape s;
  std::vector<float> values = counted(s.kv_heads * s.n);
  values.back() = std::numeric_limits<float>::quiet_NaN();
  alter(path, kLayer,
        [&](hid_t layer) { put_scores(layer, "gate.v1", s.kv_heads, s.n, values, 60); });
  alter(path, "/prompts/a/layers/0/extra/repeat/0/k", half_at({2, 3, 1}, 0x7e00));
  const TraceReader reader(path);
  EXPECT_NO_THROW(reader.read_scores(0, 0, "gate.v1", 0));
  EXPECT_THROW(reader.read_scores(0, 0, "gate.v1", 2), InputError);
  EXPECT_NO_THROW(reader.read_extra(0, 0, "repeat", 1));
  testing_replay::expect_refusal([&] { reader.read_extra(0, 0, "repeat", 2); },
                                 "extra/repeat/0/k: head 2, query 3, element 1 is nan");
}

TEST(TraceExtra, RefusalsSayWhereAndWhat) {
  const auto floats = [](const char* name, std::vector<hsize_t> dims) {
    return [=](hid_t group) {
      put_floats(group, name, dims,
                 std::vector<float>(
                     std::accumulate(dims.begin(), dims.end(), std::size_t{1}, std::multiplies<>()),
                     1.0F));
    };
  };
  const auto positions = [](std::vector<std::int32_t> values) {
    return [=](hid_t segment) { put_integers(segment, "position", values); };
  };
  const char* extra = "/prompts/a/layers/0/extra";
  const char* set = "/prompts/a/layers/0/extra/repeat";
  const char* scores = "/prompts/a/layers/0/scores";
  const char* gate = "/prompts/a/layers/0/scores/gate.v1";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_refusals(
      {
          {kSegment, drop_link("q"), {"extra/repeat/1/q", "missing"}},
          {kSegment, drop_link("k"), {"extra/repeat/1/k", "missing"}},
          {kSegment, drop_link("position"), {"extra/repeat/1/position", "missing"}},
          {kSegment, swap_dataset("q", {5, 5, 24}), {"repeat/1/q", "[5, 5, 24]", "[6, m, 24]"}},
          {kSegment, swap_dataset("q", {6, 5, 23}), {"repeat/1/q", "[6, 5, 23]", "[6, m, 24]"}},
          {kSegment, swap_dataset("k", {6, 5, 24}), {"repeat/1/k", "[6, 5, 24]", "[3, 5, 24]"}},
          {kSegment, swap_dataset("k", {3, 6, 24}), {"repeat/1/k", "[3, 6, 24]", "[3, 5, 24]"}},
          {kSegment, swap_dataset("k", {3, 5, 9}), {"repeat/1/k", "[3, 5, 9]", "[3, 5, 24]"}},
          {kSegment, swap_dataset("q", {6, 5, 24}, DType::float32), {"repeat/1/q", "32-bit"}},
          {kSegment, floats("q", {6, 5}), {"repeat/1/q"}},
          {kSegment, positions({1, 2, 3}), {"/position", "holds 3", "m = 5"}},
          {kSegment, positions({1, 2, 2, 3, 4}), {"/position", "query 2 is at 2"}},
          {kSegment, positions({-1, 0, 1, 2, 3}), {"/position", "query 0", "-1"}},
          {kSegment, floats("position", {5}), {"/position", "expected int32"}},
          {kSegment,
           [](hid_t g) {
             put_values(g, "position", {5, 1}, H5T_STD_I32LE, H5T_NATIVE_INT32,
                        std::vector<std::int32_t>{0, 1, 2, 3, 4});
           },
           {"/position", "rank is 2"}},
          {kSegment, floats("residual_norm", {4}), {"1/residual_norm", "4", "m = 5"}},
          {kSegment, floats("residual_norm", {5, 1}), {"residual_norm", "rank is 2"}},
          {kSegment,
           [](hid_t g) {
             put_floats(g, "residual_norm", {5}, {1, 1, -1, 1, 1});
           },
           {"1/residual_norm", "query 2 is -1"}},
          {kSegment, integer("prefix", -1), {kSegment, "prefix is -1", "n = 100"}},
          {kSegment, integer("prefix", 101), {kSegment, "prefix is 101", "n = 100"}},
          {kSegment,
           [](hid_t o) { put_string(o, "prefix", "60"); },
           {"prefix", "expected an integer"}},
          {kSegment, drop_attribute("last"), {kSegment, "attribute last is missing"}},
          {kSegment, drop_attribute("first"), {kSegment, "attribute first is missing"}},
          {kSegment, integer("first", 61), {kSegment, "61 and 60"}},
          {kSegment, integer("last", 61), {kSegment, "prefix = 60"}},
          {extra, rename_link("second", "a b"), {"extra/a b", "letters, digits"}},
          {set, rename_link("1", "01"), {"repeat/01", "segment 1"}},
          {set, rename_link("1", "2"), {"repeat/2", "segment 1"}},
          {extra,
           [](hid_t g) { H5Gclose(make_group(g, "empty")); },
           {"extra/empty", "no segments"}},
          {extra, floats("flat", {3}), {"extra/flat", "expected a group"}},
          {scores, floats("gate.v1", {2, 100}), {"gate.v1", "[2, 100]", "[3, 100]"}},
          {scores, floats("gate.v1", {3, 99}), {"gate.v1", "[3, 99]", "[3, 100]"}},
          {scores, floats("gate.v1", {300}), {"gate.v1", "rank is 1", "expected 2"}},
          {scores,
           [](hid_t g) {
             put_values(g, "gate.v1", {3, 100}, H5T_IEEE_F64LE, H5T_NATIVE_FLOAT,
                        std::vector<float>(300, 1.0F));
           },
           {"gate.v1", "64-bit float", "32-bit IEEE float"}},
          {scores, rename_link("other", "a:b"), {"scores/a:b", "letters, digits"}},
          {gate, integer("prefix", 101), {"gate.v1", "prefix is 101"}},
          {scores,
           [=](hid_t g) {
             std::vector<float> values(300, 1.0F);
             values[217] = nan;
             put_floats(g, "gate.v1", {3, 100}, values);
           },
           {"gate.v1", "head 2, token 17 is nan", "finite"}},
      },
      [] { return trace_with_extra(); });
}

TEST(TraceExtra, ChecksumsAreChecked) {
  const std::string path = trace_with_extra();
  alter(path, "/prompts/a/layers/0/scores/other",
        [](hid_t o) { put_string(o, "sha256", std::string(64, '0')); });
  const TraceReader reader(path);
  testing_replay::expect_refusal([&] { reader.read_scores(0, 0, "other", 0); }, "SHA-256");
}

TEST(TraceExtra, MembersThatAreMissingAreRefused) {
  const std::string path = trace_with_extra();
  alter(path, kLayer, [](hid_t layer) {
    put_string(layer, "members", "extra");
    H5Lmove(layer, "extra", layer, "extrb", H5P_DEFAULT, H5P_DEFAULT);
  });
  testing_replay::expect_refusal([&] { const TraceReader reader(path); },
                                 "layers/0/extra: is missing");
}

}  // namespace
}  // namespace kvbench::test_trace_extra
