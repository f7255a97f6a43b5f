// Every refusal of docs/trace_format.md: one line that names the file, the place, what is wrong and
// what was expected. Files that are no trace at all: tests/cli/bad_traces.sh.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "spoiled.hpp"

namespace kvbench::test_trace_refusals {
namespace {

using namespace testing_traces;

constexpr const char* kLayer = "/prompts/a/layers/0";

TEST(TraceRefusals, SayWhereAndWhat) {
  const auto reals = [](const char* name, std::vector<double> values) {
    return [=](hid_t o) { put_number(o, name, H5T_NATIVE_DOUBLE, values.data(), values.size()); };
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const hid_t half = -1;
  expect_refusals(
      {
          {"/", drop_attribute("format"), {": /: ", "format", "missing"}},
          {"/", text("format", "other"), {"other", "kvbench-trace"}},
          {"/", integer("format", 1), {"format", "expected a string"}},
          {"/", drop_attribute("version"), {"version", "missing"}},
          {"/", integer("version", 2), {"version is 2", "expected 1"}},
          {"/", text("version", "1"), {"version", "expected an integer"}},
          {"/", drop_attribute("dtype"), {"dtype", "missing"}},
          {"/", text("dtype", "int8"), {"int8", "bfloat16"}},
          {"/", text("dtype", "float32"), {"16-bit IEEE float", "32-bit IEEE float"}},
          {"/", drop_attribute("rope"), {"rope", "missing"}},
          {"/", text("rope", "pre"), {"rope is \"pre\"", "\"post\""}},
          {"/", text("rope", "x"), {"rope is \"x\""}},
          {"/", text("rope", "x\ny"), {"rope is \"x?y\""}},
          {"/", real("scale", 0), {"scale is 0", "> 0"}},
          {"/", real("scale", nan), {"scale", "finite"}},
          {kLayer, real("scale", -1), {kLayer, "scale is -1"}},
          {kLayer, real("fisher", nan), {kLayer, "fisher"}},
          {kLayer, real("fisher", -1), {kLayer, "fisher"}},
          {kLayer, integer("q_start", 5), {"q_start is 5", "n - nq = 63"}},
          {kLayer, integer("retrieval_heads", 1), {"retrieval_heads", "expected 3"}},
          {kLayer, real("sink_logit", 1), {"sink_logit", "expected 6"}},
          {kLayer, text("sink_logit", "1"), {"sink_logit", "array of numbers"}},
          {kLayer, reals("sink_logit", {0, 0, nan, 0, 0, 0}), {"place 2", "finite"}},
          {kLayer, reals("sink_logit", {0, 0, 0, 0, 0, 1e300}), {"place 5", "finite"}},
          {kLayer, integer("window", 0), {"window is 0", "at least 1"}},
          {kLayer, text("window", "x"), {"window", "expected an integer"}},
          {"/", drop_link("prompts"), {"/prompts", "missing"}},
          {"/prompts", drop_link("a"), {"/prompts", "no prompts"}},
          {"/prompts/a", drop_link("layers"), {"/prompts/a/layers", "missing"}},
          {"/prompts/a/layers", drop_link("0"), {"/prompts/a/layers", "no layers"}},
          {"/prompts/a/layers", rename_link("0", "first"), {"layers/first", "decimal"}},
          {"/prompts/a", drop_attribute("n_tokens"), {"/prompts/a", "n_tokens"}},
          {"/prompts/a", integer("n_tokens", 0), {"n_tokens is 0"}},
          {"/prompts/a", integer("n_tokens", 99), {"100 tokens", "n_tokens = 99"}},
          {kLayer, drop_link("q"), {"/layers/0/q", "missing"}},
          {kLayer, drop_link("k"), {"/layers/0/k", "missing"}},
          {kLayer, drop_link("v"), {"/layers/0/v", "missing"}},
          {kLayer,
           [](hid_t g) {
             H5Ldelete(g, "k", H5P_DEFAULT);
             H5Gclose(H5Gcreate2(g, "k", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
           },
           {"/layers/0/k", "dataset"}},
          {kLayer, bare_dataset("k", {100, 24}, half), {"rank is 2", "expected 3"}},
          {kLayer, bare_dataset("k", {}, half), {"rank is 0", "expected 3"}},
          {kLayer, bare_dataset("k", {3, 0, 24}, half), {"[3, 0, 24]", "at least 1"}},
          {kLayer, bare_dataset("k", {3, 100, 24}, H5T_IEEE_F64LE), {"64-bit float"}},
          {kLayer, bare_dataset("k", {3, 100, 24}, H5T_STD_I16LE), {"int16", "16-bit IEEE"}},
          {kLayer, swap_dataset("k", {3, 100, 24}, DType::bfloat16), {"uint16"}},
          {kLayer, swap_dataset("v", {3, 100, 9}, DType::float32), {"32-bit"}},
          {kLayer, swap_dataset("q", {6, 37, 25}), {"/q", "width is 25", "24 as in k"}},
          {kLayer, swap_dataset("v", {2, 100, 9}), {"/v", "[2, 100, 9]", "[3, 100, dv]"}},
          {kLayer, swap_dataset("v", {3, 99, 9}), {"/v", "[3, 99, 9]"}},
          {kLayer, swap_dataset("q", {6, 101, 24}), {"101 queries", "at most 100"}},
          {kLayer, swap_dataset("q", {7, 37, 24}), {"7 query heads", "3 KV heads"}},
          {"/prompts/a",
           [](hid_t prompt) {
             put_values(prompt, "token_ids", {99}, H5T_STD_I32LE, H5T_NATIVE_INT32,
                        std::vector<std::int32_t>(99));
           },
           {"token_ids", "99", "100"}},
          {"/prompts/a", bare_dataset("token_ids", {100}, H5T_IEEE_F32LE), {"token_ids", "int32"}},
          {"/prompts/a",
           bare_dataset("token_ids", {100, 1}, H5T_STD_I32LE),
           {"token_ids", "rank is 2"}},
          {kLayer, bare_dataset("k", {3, 100, 24}, half), {"holds 0 bytes"}},
          {kLayer, bare_dataset("k", {hsize_t{1} << 30, hsize_t{1} << 30, 100}, half), {"product"}},
      },
      [] { return planted_trace("t.h5"); });
}

TEST(TraceRefusals, ImplausibleChunkedSize) {
  const std::string path = planted_trace("t.h5");
  alter(path, kLayer, bare_dataset("k", {3, hsize_t{1} << 40, 24}, -1, [](hid_t plist) {
          const std::array<hsize_t, 3> chunk{1, 1024, 24};
          H5Pset_chunk(plist, 3, chunk.data());
          gzip(plist);
        }));
  expect_refusal(path, {"/k", "at most 100 times the 0 that are stored"});
}

TEST(TraceRefusals, UnavailableFilter) {
  // Registered while the file is made, gone when it is read.
  constexpr H5Z_filter_t kFilter = 511;
  const H5Z_class2_t filter{H5Z_CLASS_T_VERS,
                            kFilter,
                            1,
                            1,
                            "made_up",
                            nullptr,
                            nullptr,
                            [](unsigned, std::size_t, const unsigned*, std::size_t n, std::size_t*,
                               void**) { return n; }};
  ASSERT_GE(H5Zregister(&filter), 0);
  const std::string path = planted_trace("t.h5");
  replace_dataset(
      path, "k", {3, 100, 24}, DType::float16,
      chunked({1, 50, 24}, {[](hid_t p) { H5Pset_filter(p, kFilter, 0, 0, nullptr); }}));
  ASSERT_GE(H5Zunregister(kFilter), 0);
  expect_refusal(path, {"/k", "filter 511", "not available"});
}

TEST(TraceRefusals, NotFiniteNamesHeadAndToken) {
  for (const std::uint16_t bits : {std::uint16_t{0x7e00}, std::uint16_t{0xfc00}}) {
    for (const char* name : {"q", "k", "v"}) {
      const std::string path = planted_trace("t.h5");
      alter(path, fmt::format("{}/{}", kLayer, name).c_str(), half_at({2, 11, 3}, bits));
      // Row 11 of q is the query at token n - nq + 11.
      const std::string token = name[0] == 'q' ? "token 74" : "token 11";
      expect_refusal(path, {std::string("/layers/0/") + name, "head 2", token, "element 3",
                            bits == 0x7e00 ? "nan" : "inf"});
    }
  }
}

TEST(TraceRefusals, CorruptChunk) {
  const std::array<hsize_t, 3> dims{3, 100, 24};
  const std::array<hsize_t, 3> at{1, 0, 0};
  const std::vector<std::uint8_t> junk(500, 0x5a);
  // Not deflate at all; far too short for the chunk; unfiltered, but of the wrong size.
  for (const auto& [size, mask] :
       {std::pair{std::size_t{500}, 0U}, {std::size_t{2}, 0U}, {std::size_t{400}, 3U}}) {
    const std::string path = planted_trace("t.h5");
    replace_dataset(path, "k", dims, DType::float16, chunked({1, 100, 24}, {shuffle, gzip}));
    alter(path, "/prompts/a/layers/0/k", [&, n = size, m = mask](hid_t k) {
      EXPECT_GE(H5Dwrite_chunk(k, H5P_DEFAULT, m, at.data(), n, junk.data()), 0);
    });
    expect_refusal(path, {"/k", "chunk at [1, 0, 0]"});
  }
}

}  // namespace
}  // namespace kvbench::test_trace_refusals
