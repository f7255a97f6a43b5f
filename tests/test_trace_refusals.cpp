// Every refusal of docs/trace_format.md: one line that names the file, the place, what is wrong and
// what was expected.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "refusal.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"
#include "trace_files.hpp"

namespace kvbench::test_trace_refusals {
namespace {

using testing_traces::alter;
using testing_traces::planted_trace;
using testing_traces::put_double;
using testing_traces::put_int;
using testing_traces::put_string;
using testing_traces::replace_dataset;
using testing_traces::Storage;
using testing_traces::temporary_path;

constexpr const char* kLayer = "/prompts/a/layers/0";

Storage chunked(std::array<hsize_t, 3> chunk, std::vector<std::function<void(hid_t)>> settings) {
  return {Storage::Layout::chunked, chunk, false, false, std::move(settings), false};
}

// The message of the refusal that `path` meets, opened and read whole.
std::string refusal(const std::string& path) {
  const std::string message = testing_replay::refusal(
      [&] {
        const TraceReader reader(path);
        validate_values(reader);
      },
      path);
  EXPECT_EQ(message.rfind(path, 0), 0U) << message;
  return message;
}

void expect_refusal(const std::string& path, const std::vector<std::string>& parts) {
  const std::string message = refusal(path);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

// One refusal: how to spoil a valid trace, and what the message must say.
struct Spoiled {
  const char* name;
  const char* object;
  std::function<void(hid_t)> spoil;
  std::vector<std::string> says;
};

std::function<void(hid_t)> drop_attribute(const char* name) {
  return [name](hid_t o) { H5Adelete(o, name); };
}

std::function<void(hid_t)> drop_link(const char* name) {
  return [name](hid_t o) { H5Ldelete(o, name, H5P_DEFAULT); };
}

std::function<void(hid_t)> swap_dataset(const char* name, std::array<hsize_t, 3> dims,
                                        DType type = DType::float16) {
  return [=](hid_t layer) {
    H5Ldelete(layer, name, H5P_DEFAULT);
    testing_traces::put_dataset(layer, name, dims, type, {});
  };
}

// A dataset of any rank and type without data.
std::function<void(hid_t)> bare_dataset(const char* name, std::vector<hsize_t> dims, hid_t type) {
  return [=](hid_t group) {
    H5Ldelete(group, name, H5P_DEFAULT);
    const hid_t space = dims.empty()
                            ? H5Screate(H5S_SCALAR)
                            : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
    const hid_t half = testing_traces::make_type(DType::float16, false);
    H5Dclose(H5Dcreate2(group, name, type < 0 ? half : type, space, H5P_DEFAULT, H5P_DEFAULT,
                        H5P_DEFAULT));
    H5Tclose(half);
    H5Sclose(space);
  };
}

std::vector<Spoiled> spoiled() {
  const auto text = [](const char* name, const char* value) {
    return [=](hid_t o) { put_string(o, name, value); };
  };
  const auto integer = [](const char* name, std::int64_t value) {
    return [=](hid_t o) { put_int(o, name, value); };
  };
  const auto real = [](const char* name, double value) {
    return [=](hid_t o) { put_double(o, name, value); };
  };
  const auto reals = [](const char* name, std::vector<double> values) {
    return [=](hid_t o) {
      testing_traces::put_number(o, name, H5T_NATIVE_DOUBLE, values.data(), values.size());
    };
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const hid_t half = -1;
  return {
      {"no_format", "/", drop_attribute("format"), {": /: ", "format", "missing"}},
      {"wrong_format", "/", text("format", "other"), {"other", "kvbench-trace"}},
      {"format_no_string", "/", integer("format", 1), {"format", "expected a string"}},
      {"no_version", "/", drop_attribute("version"), {"version", "missing"}},
      {"wrong_version", "/", integer("version", 2), {"version is 2", "expected 1"}},
      {"version_no_integer", "/", text("version", "1"), {"version", "expected an integer"}},
      {"no_dtype", "/", drop_attribute("dtype"), {"dtype", "missing"}},
      {"wrong_dtype", "/", text("dtype", "int8"), {"int8", "bfloat16"}},
      {"other_dtype", "/", text("dtype", "float32"), {"16-bit IEEE float", "32-bit IEEE float"}},
      {"no_rope", "/", drop_attribute("rope"), {"rope", "missing"}},
      {"rope_pre", "/", text("rope", "pre"), {"rope is \"pre\"", "\"post\""}},
      {"rope_other", "/", text("rope", "x"), {"rope is \"x\""}},
      {"line_break", "/", text("rope", "x\ny"), {"rope is \"x?y\""}},
      {"scale_zero", "/", real("scale", 0), {"scale is 0", "> 0"}},
      {"scale_nan", "/", real("scale", nan), {"scale", "finite"}},
      {"layer_scale_negative", kLayer, real("scale", -1), {kLayer, "scale is -1"}},
      {"fisher_nan", kLayer, real("fisher", nan), {kLayer, "fisher"}},
      {"q_start", kLayer, integer("q_start", 5), {"q_start is 5", "n - nq = 63"}},
      {"retrieval_count", kLayer, integer("retrieval_heads", 1), {"retrieval_heads", "expected 3"}},
      {"sink_count", kLayer, real("sink_logit", 1), {"sink_logit", "expected 6"}},
      {"sink_text", kLayer, text("sink_logit", "1"), {"sink_logit", "array of numbers"}},
      {"sink_nan", kLayer, reals("sink_logit", {0, 0, nan, 0, 0, 0}), {"place 2", "finite"}},
      {"sink_wide", kLayer, reals("sink_logit", {0, 0, 0, 0, 0, 1e300}), {"place 5", "finite"}},
      {"window_zero", kLayer, integer("window", 0), {"window is 0", "at least 1"}},
      {"window_text", kLayer, text("window", "x"), {"window", "expected an integer"}},
      {"no_prompts", "/", drop_link("prompts"), {"/prompts", "missing"}},
      {"empty_prompts", "/prompts", drop_link("a"), {"/prompts", "no prompts"}},
      {"no_layers", "/prompts/a", drop_link("layers"), {"/prompts/a/layers", "missing"}},
      {"empty_layers", "/prompts/a/layers", drop_link("0"), {"/prompts/a/layers", "no layers"}},
      {"layer_name",
       "/prompts/a/layers",
       [](hid_t g) { H5Lmove(g, "0", g, "first", H5P_DEFAULT, H5P_DEFAULT); },
       {"layers/first", "decimal"}},
      {"no_n_tokens", "/prompts/a", drop_attribute("n_tokens"), {"/prompts/a", "n_tokens"}},
      {"zero_n_tokens", "/prompts/a", integer("n_tokens", 0), {"n_tokens is 0"}},
      {"wrong_n_tokens", "/prompts/a", integer("n_tokens", 99), {"100 tokens", "n_tokens = 99"}},
      {"no_q", kLayer, drop_link("q"), {"/layers/0/q", "missing"}},
      {"no_k", kLayer, drop_link("k"), {"/layers/0/k", "missing"}},
      {"no_v", kLayer, drop_link("v"), {"/layers/0/v", "missing"}},
      {"k_is_group",
       kLayer,
       [](hid_t g) {
         H5Ldelete(g, "k", H5P_DEFAULT);
         H5Gclose(H5Gcreate2(g, "k", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
       },
       {"/layers/0/k", "dataset"}},
      {"rank_two", kLayer, bare_dataset("k", {100, 24}, half), {"rank is 2", "expected 3"}},
      {"rank_zero", kLayer, bare_dataset("k", {}, half), {"rank is 0", "expected 3"}},
      {"zero_size", kLayer, bare_dataset("k", {3, 0, 24}, half), {"[3, 0, 24]", "at least 1"}},
      {"float64", kLayer, bare_dataset("k", {3, 100, 24}, H5T_IEEE_F64LE), {"64-bit float"}},
      {"int16", kLayer, bare_dataset("k", {3, 100, 24}, H5T_STD_I16LE), {"int16", "16-bit IEEE"}},
      {"uint16_for_half", kLayer, swap_dataset("k", {3, 100, 24}, DType::bfloat16), {"uint16"}},
      {"float32_for_half", kLayer, swap_dataset("v", {3, 100, 9}, DType::float32), {"32-bit"}},
      {"q_width", kLayer, swap_dataset("q", {6, 37, 25}), {"/q", "width is 25", "24 as in k"}},
      {"v_heads", kLayer, swap_dataset("v", {2, 100, 9}), {"/v", "[2, 100, 9]", "[3, 100, dv]"}},
      {"v_tokens", kLayer, swap_dataset("v", {3, 99, 9}), {"/v", "[3, 99, 9]"}},
      {"q_tokens", kLayer, swap_dataset("q", {6, 101, 24}), {"101 queries", "at most 100"}},
      {"head_groups", kLayer, swap_dataset("q", {7, 37, 24}), {"7 query heads", "3 KV heads"}},
      {"token_id_count",
       "/prompts/a",
       bare_dataset("token_ids", {99}, H5T_STD_I32LE),
       {"token_ids", "99", "100"}},
      {"token_id_type",
       "/prompts/a",
       bare_dataset("token_ids", {100}, H5T_IEEE_F32LE),
       {"token_ids", "int32"}},
      {"token_id_rank",
       "/prompts/a",
       bare_dataset("token_ids", {100, 1}, H5T_STD_I32LE),
       {"token_ids", "rank is 2"}},
      {"never_written", kLayer, bare_dataset("k", {3, 100, 24}, half), {"holds 0 bytes"}},
      {"product_overflows",
       kLayer,
       bare_dataset("k", {hsize_t{1} << 30, hsize_t{1} << 30, 100}, half),
       {"product"}},
  };
}

class TraceRefusal : public ::testing::TestWithParam<std::size_t> {};

TEST_P(TraceRefusal, SaysWhereAndWhat) {
  const Spoiled test = spoiled()[GetParam()];
  const std::string path = planted_trace("t.h5");
  alter(path, test.object, test.spoil);
  expect_refusal(path, test.says);
}

INSTANTIATE_TEST_SUITE_P(All, TraceRefusal, ::testing::Range<std::size_t>(0, spoiled().size()),
                         [](const auto& test) { return std::string(spoiled()[test.param].name); });

TEST(TraceRefusals, MissingFile) {
  expect_refusal(temporary_path("absent.h5"), {"no such file"});
}

TEST(TraceRefusals, Directory) {
  expect_refusal(std::filesystem::path(temporary_path("x")).parent_path().string(), {"directory"});
}

TEST(TraceRefusals, NotHdf5) {
  const std::string path = temporary_path("text.h5");
  std::ofstream(path) << "not a trace";
  expect_refusal(path, {"not HDF5"});
  std::ofstream(path, std::ios::trunc).close();
  expect_refusal(path, {"not HDF5"});
}

TEST(TraceRefusals, Truncated) {
  const std::string path = planted_trace("t.h5");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  expect_refusal(path, {"truncated"});
}

TEST(TraceRefusals, ImplausibleChunkedSize) {
  const std::string path = planted_trace("t.h5");
  alter(path, kLayer, [](hid_t layer) {
    H5Ldelete(layer, "k", H5P_DEFAULT);
    const std::array<hsize_t, 3> dims{3, hsize_t{1} << 40, 24};
    const std::array<hsize_t, 3> chunk{1, 1024, 24};
    const hid_t space = H5Screate_simple(3, dims.data(), nullptr);
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 3, chunk.data());
    H5Pset_deflate(plist, 4);
    const hid_t half = testing_traces::make_type(DType::float16, false);
    H5Dclose(H5Dcreate2(layer, "k", half, space, H5P_DEFAULT, plist, H5P_DEFAULT));
    H5Tclose(half);
    H5Pclose(plist);
    H5Sclose(space);
  });
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
      alter(path, fmt::format("{}/{}", kLayer, name).c_str(), [&](hid_t data) {
        const std::array<hsize_t, 3> start{2, 11, 3};
        const std::array<hsize_t, 3> one{1, 1, 1};
        const hid_t space = H5Dget_space(data);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, one.data(), nullptr);
        const hid_t memory = H5Screate_simple(3, one.data(), nullptr);
        const hid_t type = H5Dget_type(data);
        H5Dwrite(data, type, memory, space, H5P_DEFAULT, &bits);
        H5Tclose(type);
        H5Sclose(memory);
        H5Sclose(space);
      });
      // Row 11 of q is the query at token n - nq + 11.
      const std::string token = name[0] == 'q' ? "token 74" : "token 11";
      expect_refusal(path, {std::string("/layers/0/") + name, "head 2", token, "element 3",
                            bits == 0x7e00 ? "nan" : "inf"});
    }
  }
}

TEST(TraceRefusals, CorruptChunk) {
  const auto shuffle = [](hid_t p) { H5Pset_shuffle(p); };
  const auto gzip = [](hid_t p) { H5Pset_deflate(p, 4); };
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
