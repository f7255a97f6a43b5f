// Reader: every layout and element type gives the planted values, as HDF5 gives them, and metadata
// are understood as h5py and other tools write them. Refusals: test_trace_refusals.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "hdf5_values.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"
#include "trace_files.hpp"

namespace kvbench::test_trace_reader {
namespace {

using namespace testing_traces;
using Layout = Storage::Layout;

constexpr const char* kLayer = "/prompts/a/layers/0";

void expect_planted_head(const KvHead& head, const Shape& s, Index kv_head) {
  EXPECT_EQ(head.n(), s.n);
  EXPECT_EQ(head.nq(), s.nq);
  EXPECT_EQ(head.d(), s.d);
  EXPECT_EQ(head.dv(), s.dv);
  ASSERT_EQ(head.group(), s.q_heads / s.kv_heads);
  expect_planted(head.k, 'k', kv_head);
  expect_planted(head.v, 'v', kv_head);
  for (Index i = 0; i < head.group(); ++i) {
    expect_planted(head.q[i], 'q', kv_head * head.group() + i);
  }
}

// Keys as HDF5 itself reads them.
void expect_as_hdf5(const Matrix& k, const std::string& path, DType type, Index head) {
  const auto slow = hdf5_head(path, std::string(kLayer) + "/k", type, head, k.rows(), k.cols());
  EXPECT_TRUE(std::equal(slow.begin(), slow.end(), k.data())) << "head " << head;
}

// ------------------------------------------------------------------------------------- layouts

struct NamedStorage {
  const char* name;
  Storage storage;
  bool newest_format = false;
};

std::vector<NamedStorage> storages() {
  const auto partial = [](hid_t p) { H5Pset_chunk_opts(p, H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS); };
  Storage extensible = chunked({2, 64, 32}, {shuffle, gzip});
  extensible.extensible = true;
  return {
      {"contiguous", {}},
      {"contiguous_big_endian", {Layout::contiguous, {}, true, false, {}, false}},
      {"compact", {Layout::compact, {}, false, false, {}, false}},
      {"chunked", chunked({1, 64, 24})},
      {"chunked_odd", chunked({1, 17, 5})},
      {"chunked_odd_gzip", chunked({1, 17, 5}, {gzip})},
      {"chunked_odd_shuffle_gzip", chunked({2, 13, 7}, {shuffle, gzip})},
      {"one_chunk_all_heads", chunked({6, 100, 24}, {shuffle, gzip})},
      {"heads_by_two", chunked({2, 33, 24}, {gzip})},
      {"gzip", chunked({1, 64, 24}, {gzip})},
      {"shuffle", chunked({1, 64, 24}, {shuffle})},
      {"shuffle_gzip", chunked({1, 64, 24}, {shuffle, gzip})},
      {"gzip_shuffle", chunked({1, 64, 24}, {gzip, shuffle})},
      {"one_element_chunks", chunked({1, 1, 1}, {shuffle, gzip})},
      {"fletcher32", chunked({1, 64, 24}, {checksum})},
      {"fletcher32_first", chunked({1, 17, 5}, {checksum, shuffle, gzip})},
      {"fletcher32_odd", chunked({1, 33, 7}, {gzip, checksum})},
      {"plain_big_endian", chunked({2, 33, 7}, {}, true)},
      {"shuffle_big_endian", chunked({1, 64, 24}, {shuffle, gzip}, true)},
      {"shuffle_gzip_fletcher32", chunked({1, 64, 24}, {shuffle, gzip, checksum})},
      {"gzip_big_endian", chunked({1, 64, 24}, {gzip}, true)},
      {"extensible_beyond_shape", extensible},
      {"newest_format", chunked({1, 64, 24}, {shuffle, gzip}), true},
      {"unfiltered_edges", chunked({1, 64, 24}, {shuffle, gzip, partial}), true},
  };
}

using LayoutCase = std::tuple<std::size_t, DType>;
class TraceLayout : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(TraceLayout, GivesPlantedValuesAsHdf5Does) {
  const auto [which, type] = GetParam();
  const NamedStorage storage = storages()[which];
  Shape s;
  if (storage.storage.layout == Layout::compact) {
    s.n = 50;  // compact data lie in a header of less than 64 KiB
  }
  const std::string path = planted_trace("t.h5", type, s, storage.storage, storage.newest_format);
  const TraceReader reader(path);
  EXPECT_EQ(reader.meta().dtype, type);
  for (Index h = 0; h < s.kv_heads; ++h) {
    const KvHead head = reader.read_head(0, 0, h);
    expect_planted_head(head, s, h);
    expect_as_hdf5(head.k, path, type, h);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TraceLayout,
                         ::testing::Combine(::testing::Range<std::size_t>(0, storages().size()),
                                            ::testing::Values(DType::float16, DType::bfloat16,
                                                              DType::float32)),
                         [](const auto& test) {
                           return std::string(storages()[std::get<0>(test.param)].name) + "_" +
                                  std::string(name(std::get<1>(test.param)));
                         });

TEST(TraceReader, HonoursTheFilterMask) {
  const std::string path = planted_trace("t.h5");
  const std::array<hsize_t, 3> dims{3, 100, 24};
  replace_dataset(path, "k", dims, DType::float16, chunked({1, 100, 24}, {shuffle, gzip}));
  auto bytes = planted_bytes('k', dims, DType::float16, false);
  alter(path, "/prompts/a/layers/0/k", [&](hid_t k) {
    // Head 1 with neither filter, head 2 shuffled only.
    const std::size_t size = bytes.size() / 3;
    const std::array<hsize_t, 3> plain{1, 0, 0};
    EXPECT_GE(H5Dwrite_chunk(k, H5P_DEFAULT, 3, plain.data(), size, bytes.data() + size), 0);
    std::vector<std::uint8_t> planes(size);
    for (std::size_t i = 0; i < size / 2; ++i) {
      planes[i] = bytes[2 * size + 2 * i];
      planes[size / 2 + i] = bytes[2 * size + 2 * i + 1];
    }
    const std::array<hsize_t, 3> shuffled{2, 0, 0};
    EXPECT_GE(H5Dwrite_chunk(k, H5P_DEFAULT, 2, shuffled.data(), size, planes.data()), 0);
  });
  const TraceReader reader(path);
  for (Index h = 0; h < 3; ++h) {
    const KvHead head = reader.read_head(0, 0, h);
    expect_planted(head.k, 'k', h);
    expect_as_hdf5(head.k, path, DType::float16, h);
  }
}

// -------------------------------------------------------------------------------------- metadata

TEST(TraceReader, DescribesTheFile) {
  const std::string path = planted_trace("t.h5");
  TraceReader opened(path);
  const TraceReader reader = std::move(opened);
  const TraceMeta& meta = reader.meta();
  EXPECT_EQ(meta.path, path);
  EXPECT_EQ(meta.model, "planted");
  EXPECT_EQ(meta.source, "test");
  EXPECT_EQ(meta.created, "2026-01-02");
  EXPECT_EQ(meta.rope, "post");
  EXPECT_EQ(meta.dtype, DType::float16);
  EXPECT_FALSE(meta.scale.has_value());
  EXPECT_EQ(meta.file_bytes, std::filesystem::file_size(path));
  ASSERT_EQ(meta.prompts.size(), 1U);
  EXPECT_EQ(meta.prompts[0].id, "a");
  EXPECT_EQ(meta.prompts[0].n_tokens, 100);
  EXPECT_TRUE(meta.prompts[0].has_token_ids);
  ASSERT_EQ(meta.prompts[0].layers.size(), 1U);
  const LayerMeta& layer = meta.prompts[0].layers[0];
  EXPECT_EQ(layer.layer, 0);
  EXPECT_EQ(layer.group(), 2);
  EXPECT_DOUBLE_EQ(layer.scale, 1.0 / std::sqrt(24.0));
  EXPECT_FALSE(layer.fisher.has_value());
  EXPECT_TRUE(layer.retrieval_heads.empty());
  EXPECT_EQ(reader.read_token_ids(0), std::vector<std::int32_t>(100, 7));
}

TEST(TraceReader, LayerAttributesWinOverTheRoot) {
  const std::string path = planted_trace("t.h5");
  alter(path, "/", [](hid_t root) { put_double(root, "scale", 0.25); });
  EXPECT_EQ(TraceReader(path).meta().prompts[0].layers[0].scale, 0.25);
  alter(path, kLayer, [](hid_t layer) {
    const float scale = 0.5f;  // h5py stores numpy.float32 as such
    put_number(layer, "scale", H5T_NATIVE_FLOAT, &scale, 1);
    put_double(layer, "fisher", 2.5);
    put_int(layer, "q_start", 63);
    const std::array<std::uint8_t, 3> heads{0, 1, 1};
    put_number(layer, "retrieval_heads", H5T_NATIVE_UINT8, heads.data(), 3);
  });
  const TraceReader reader(path);
  const LayerMeta& layer = reader.meta().prompts[0].layers[0];
  EXPECT_EQ(layer.scale, 0.5);
  EXPECT_EQ(layer.fisher, 2.5);
  EXPECT_EQ(layer.retrieval_heads, (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(reader.read_head(0, 0, 0).scale, 0.5);
}

TEST(TraceReader, TakesAttributesAsPythonWritesThem) {
  const std::string path = planted_trace("t.h5");
  alter(path, "/", [](hid_t root) {
    // Variable length, UTF-8, one-element array.
    H5Adelete(root, "dtype");
    const Id type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    const char* text = "float16";
    put_number(root, "dtype", type, &text, 1);
    // Space-padded fixed length, as Fortran writes.
    H5Adelete(root, "rope");
    const Id padded = H5Tcopy(H5T_C_S1);
    H5Tset_size(padded, 8);
    H5Tset_strpad(padded, H5T_STR_SPACEPAD);
    put_number(root, "rope", padded, "post    ");
    const std::uint8_t version = 1;
    put_number(root, "version", H5T_NATIVE_UINT8, &version, 1);
    H5Adelete(root, "source");  // a description only
    const Id null = H5Screate(H5S_NULL);
    H5Adelete(root, "model");
    H5Aclose(H5Acreate2(root, "model", H5T_C_S1, null, H5P_DEFAULT, H5P_DEFAULT));
  });
  const TraceReader reader(path);
  EXPECT_EQ(reader.meta().dtype, DType::float16);
  EXPECT_EQ(reader.meta().rope, "post");
  EXPECT_EQ(reader.meta().source, "");
  EXPECT_EQ(reader.meta().model, "");
}

TEST(TraceReader, OrdersLayersAndPromptsByNumber) {
  const std::string path = planted_trace("t.h5");
  alter(path, "/prompts", [](hid_t prompts) {
    for (const char* id : {"p10", "p9"}) {
      H5Ocopy(prompts, "a", prompts, id, H5P_DEFAULT, H5P_DEFAULT);
    }
    const Id layers = H5Gopen2(prompts, "a/layers", H5P_DEFAULT);
    for (const char* layer : {"10", "2"}) {
      H5Ocopy(layers, "0", layers, layer, H5P_DEFAULT, H5P_DEFAULT);
    }
  });
  const TraceReader reader(path);
  ASSERT_EQ(reader.meta().prompts.size(), 3U);
  EXPECT_EQ(reader.meta().prompts[1].id, "p9");
  EXPECT_EQ(reader.meta().prompts[2].id, "p10");
  const auto& layers = reader.meta().prompts[0].layers;
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_EQ(layers[1].layer, 2);
  EXPECT_EQ(layers[2].layer, 10);
}

TEST(TraceReader, ThreadsReadAtTheSameTime) {
  const Storage storage = chunked({1, 16, 24}, {gzip});
  const TraceReader reader(planted_trace("t.h5", DType::float16, {}, storage));
  constexpr int kReads = 50;
  std::vector<std::thread> threads;
  for (Index h = 0; h < 3; ++h) {
    threads.emplace_back([&reader, h] {
      for (int i = 0; i < kReads; ++i) {
        expect_planted(reader.read_rows(0, 0, LayerTensor::keys, h), 'k', h);
        expect_planted(reader.read_rows(0, 0, LayerTensor::values, h), 'v', h);
        expect_planted(reader.read_rows(0, 0, LayerTensor::queries, h + 3), 'q', h + 3);
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
}

TEST(TraceReader, RefusesIndicesOutOfRange) {
  const TraceReader reader(planted_trace("t.h5"));
  EXPECT_THROW(reader.read_head(1, 0, 0), InputError);
  EXPECT_THROW(reader.read_head(0, 1, 0), InputError);
  EXPECT_THROW(reader.read_head(0, 0, 3), InputError);
  EXPECT_THROW(reader.read_head(0, 0, -1), InputError);
  EXPECT_THROW(reader.read_token_ids(1), InputError);
  EXPECT_THROW(reader.read_rows(0, 0, LayerTensor::queries, 6), InputError);
  EXPECT_THROW(reader.read_rows(0, 0, LayerTensor::keys, 3), InputError);
  EXPECT_THROW(reader.read_rows(0, 1, LayerTensor::keys, 0), InputError);
  EXPECT_THROW(reader.read_rows(1, 0, LayerTensor::keys, 0), InputError);
}

TEST(TraceReader, ValidationVisitsEachHeadOnce) {
  const TraceReader reader(planted_trace("t.h5"));
  std::vector<Index> seen;
  validate_values(reader, [&](const HeadVisit& v, const KvHead& head) {
    seen.push_back(v.kv_head);
    EXPECT_EQ(v.done, seen.size());
    EXPECT_EQ(v.total, 3U);
    EXPECT_EQ(head.n(), 100);
  });
  EXPECT_EQ(seen, (std::vector<Index>{0, 1, 2}));
}

}  // namespace
}  // namespace kvbench::test_trace_reader
