// Traces made with plain HDF5 calls, independent of lib/trace, for the tests of its reader.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/types.hpp"
#include "hdf5_values.hpp"

namespace kvbench::testing_traces {

/// A path below gtest's temporary folder, unique to the running test.
inline std::string temporary_path(const std::string& name) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string test = std::string(info->test_suite_name()) + "_" + info->name();
  for (char& c : test) {
    c = c == '/' ? '_' : c;
  }
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("kvbench_" + test);
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

/// The value planted at (head, row, column) of a dataset; exact in all three element types.
inline float planted(char dataset, Index head, Index row, Index column) {
  const Index mixed = head * 31 + row * 7 + column * 3 + dataset;
  return static_cast<float>(mixed % 61 - 30) / 4.0f;
}

/// Half bits of a planted value or of another small normal number. Written apart from
/// core/float16.
inline std::uint16_t exact_half(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x == 0) {
    return static_cast<std::uint16_t>(bits >> 16);
  }
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (((bits >> 23 & 0xffu) - 112u) << 10) |
                                    (bits >> 13 & 0x3ffu));
}

/// The rows of a head are those that were planted.
inline void expect_planted(const Matrix& m, char dataset, Index head) {
  for (Index r = 0; r < m.rows(); ++r) {
    for (Index c = 0; c < m.cols(); ++c) {
      ASSERT_EQ(m.row(r)[c], planted(dataset, head, r, c))
          << dataset << " head " << head << " row " << r << " column " << c;
    }
  }
}

/// How a dataset is stored.
struct Storage {
  enum class Layout { contiguous, compact, chunked };
  Layout layout = Layout::contiguous;
  std::array<hsize_t, 3> chunk{};
  bool big_endian = false;
  bool extensible = false;
  std::vector<std::function<void(hid_t)>> settings;  // applied to the creation property list
  bool half_written = false;                         // only the first head has storage
};

struct Shape {
  Index q_heads = 6, kv_heads = 3, n = 100, nq = 37, d = 24, dv = 9;
};

/// Of one KV head, for tests that read many files.
inline Shape small_shape() {
  return {2, 1, 40, 10, 8, 4};
}

// Filters of a creation property list.
inline void shuffle(hid_t plist) {
  H5Pset_shuffle(plist);
}
inline void gzip(hid_t plist) {
  H5Pset_deflate(plist, 4);
}
inline void checksum(hid_t plist) {
  H5Pset_fletcher32(plist);
}

inline Storage chunked(std::array<hsize_t, 3> chunk,
                       std::vector<std::function<void(hid_t)>> settings = {},
                       bool big_endian = false) {
  return {Storage::Layout::chunked, chunk, big_endian, false, std::move(settings), false};
}

/// Chunks of one head and 16 rows of small_shape, shuffled and deflated.
inline Storage packed_storage() {
  return chunked({1, 16, 8}, {shuffle, gzip});
}

inline hid_t make_type(DType type, bool big_endian) {
  const auto ordered = [big_endian](hid_t little, hid_t big) {
    return H5Tcopy(big_endian ? big : little);
  };
  if (type == DType::bfloat16) {
    return ordered(H5T_STD_U16LE, H5T_STD_U16BE);
  }
  const hid_t t = ordered(H5T_IEEE_F32LE, H5T_IEEE_F32BE);
  if (type == DType::float16) {
    H5Tset_fields(t, 15, 10, 5, 0, 10);
    H5Tset_size(t, 2);
    H5Tset_ebias(t, 15);
  }
  return t;
}

/// Stored bytes, in the file's type, of [heads, rows, cols] planted values.
inline std::vector<std::uint8_t> planted_bytes(char dataset, std::array<hsize_t, 3> dims,
                                               DType type, bool big_endian) {
  std::vector<std::uint8_t> out;
  const auto put = [&](std::uint32_t bits, int width) {
    for (int b = 0; b < width; ++b) {
      const int shift = 8 * (big_endian ? width - 1 - b : b);
      out.push_back(static_cast<std::uint8_t>(bits >> shift));
    }
  };
  for (hsize_t h = 0; h < dims[0]; ++h) {
    for (hsize_t r = 0; r < dims[1]; ++r) {
      for (hsize_t c = 0; c < dims[2]; ++c) {
        const float x =
            planted(dataset, static_cast<Index>(h), static_cast<Index>(r), static_cast<Index>(c));
        switch (type) {
          case DType::float16: put(exact_half(x), 2); break;
          case DType::bfloat16: put(std::bit_cast<std::uint32_t>(x) >> 16, 2); break;
          case DType::float32: put(std::bit_cast<std::uint32_t>(x), 4); break;
        }
      }
    }
  }
  return out;
}

/// Writes a dataset of these bytes below `group`.
inline void put_stored(hid_t group, const char* name, const std::vector<hsize_t>& dims, DType type,
                       const Storage& storage, const std::vector<std::uint8_t>& bytes) {
  const auto rank = static_cast<int>(dims.size());
  const std::vector<hsize_t> unlimited(dims.size(), H5S_UNLIMITED);
  const Id space =
      H5Screate_simple(rank, dims.data(), storage.extensible ? unlimited.data() : nullptr);
  const Id plist = H5Pcreate(H5P_DATASET_CREATE);
  const Id element = make_type(type, storage.big_endian);
  switch (storage.layout) {
    case Storage::Layout::contiguous: break;
    case Storage::Layout::compact: H5Pset_layout(plist, H5D_COMPACT); break;
    case Storage::Layout::chunked: {
      std::array<hsize_t, 3> chunk = storage.chunk;
      for (std::size_t i = 0; i < dims.size() && !storage.extensible; ++i) {
        chunk[i] = std::min(chunk[i], dims[i]);
      }
      H5Pset_chunk(plist, rank, chunk.data());
      break;
    }
  }
  for (const auto& set : storage.settings) {
    set(plist);
  }
  const Id data = H5Dcreate2(group, name, element, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  ASSERT_GE(data, 0);
  std::vector<hsize_t> count = dims;
  count[0] = storage.half_written ? 1 : dims[0];
  const std::vector<hsize_t> start(dims.size(), 0);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  const Id memory = H5Screate_simple(rank, count.data(), nullptr);
  EXPECT_GE(H5Dwrite(data, element, memory, space, H5P_DEFAULT, bytes.data()), 0);
}

/// Writes one planted dataset below `group`.
inline void put_dataset(hid_t group, const char* name, std::array<hsize_t, 3> dims, DType type,
                        const Storage& storage) {
  put_stored(group, name, {dims.begin(), dims.end()}, type, storage,
             planted_bytes(name[0], dims, type, storage.big_endian));
}

inline void put_number(hid_t object, const char* name, hid_t type, const void* value,
                       hsize_t count = 0) {
  H5Adelete(object, name);
  const Id space = count == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr);
  const Id a = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  H5Awrite(a, type, value);
}

inline void put_string(hid_t object, const char* name, const std::string& text) {
  const Id type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, text.size() + 1);
  put_number(object, name, type, text.c_str());
}

/// A string attribute of variable length, as h5py writes str.
inline void put_variable_string(hid_t object, const char* name, const std::string& text) {
  const Id type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  const char* start = text.c_str();
  put_number(object, name, type, static_cast<const void*>(&start));
}

inline void put_int(hid_t object, const char* name, std::int64_t value) {
  put_number(object, name, H5T_NATIVE_INT64, &value);
}

inline void put_double(hid_t object, const char* name, double value) {
  put_number(object, name, H5T_NATIVE_DOUBLE, &value);
}

/// Silences HDF5's error printing, which deliberate failures would trigger.
struct Quiet {
  Quiet() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }
};

/// Replaces what stands below `group` by a dataset of these values, of the HDF5 type `stored`.
template <class T>
void put_values(hid_t group, const char* name, const std::vector<hsize_t>& sizes, hid_t stored,
                hid_t memory, const std::vector<T>& values, bool packed = false) {
  if (H5Lexists(group, name, H5P_DEFAULT) > 0) {
    H5Ldelete(group, name, H5P_DEFAULT);
  }
  const Id space = H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
  const Id plist = H5Pcreate(H5P_DATASET_CREATE);
  if (packed && !values.empty()) {
    std::vector<hsize_t> chunk = sizes;
    chunk[0] = std::min<hsize_t>(2, chunk[0]);
    H5Pset_chunk(plist, static_cast<int>(chunk.size()), chunk.data());
    H5Pset_shuffle(plist);
    H5Pset_deflate(plist, 4);
  }
  const Id data = H5Dcreate2(group, name, stored, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  ASSERT_GE(data, 0);
  if (!values.empty()) {
    EXPECT_GE(H5Dwrite(data, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  }
}

/// A whole valid trace of one prompt "a" with layer 0.
inline std::string planted_trace(const std::string& name, DType type = DType::float16,
                                 const Shape& s = {}, const Storage& storage = {},
                                 bool newest_format = false) {
  const Quiet quiet;
  const std::string path = temporary_path(name);
  const Id access = H5Pcreate(H5P_FILE_ACCESS);
  if (newest_format) {
    H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  }
  const Id file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  put_string(file, "format", "kvbench-trace");
  put_int(file, "version", 1);
  put_string(file, "model", "planted");
  put_string(file, "source", "test");
  put_string(file, "created", "2026-01-02");
  put_string(file, "dtype", std::string(kvbench::name(type)));
  put_string(file, "rope", "post");
  const Id links = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  const Id layer = H5Gcreate2(file, "/prompts/a/layers/0", links, H5P_DEFAULT, H5P_DEFAULT);
  const Id prompt = H5Gopen2(file, "/prompts/a", H5P_DEFAULT);
  put_int(prompt, "n_tokens", s.n);
  const auto dims = [](Index a, Index b, Index c) {
    return std::array<hsize_t, 3>{static_cast<hsize_t>(a), static_cast<hsize_t>(b),
                                  static_cast<hsize_t>(c)};
  };
  put_dataset(layer, "q", dims(s.q_heads, s.nq, s.d), type, storage);
  put_dataset(layer, "k", dims(s.kv_heads, s.n, s.d), type, storage);
  put_dataset(layer, "v", dims(s.kv_heads, s.n, s.dv), type, storage);
  put_values(prompt, "token_ids", {static_cast<hsize_t>(s.n)}, H5T_STD_I32LE, H5T_NATIVE_INT32,
             std::vector<std::int32_t>(s.n, 7));
  return path;
}

/// Opens a trace for change and hands `change` the object at `inside`.
inline void alter(const std::string& path, const char* inside,
                  const std::function<void(hid_t)>& change) {
  const Quiet quiet;
  const Id file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const Id object = H5Oopen(file, inside, H5P_DEFAULT);
  ASSERT_GE(object, 0);
  change(object);
}

/// Replaces a dataset of layer 0.
inline void replace_dataset(const std::string& path, const char* name, std::array<hsize_t, 3> dims,
                            DType type = DType::float16, const Storage& storage = {}) {
  alter(path, "/prompts/a/layers/0", [&](hid_t layer) {
    H5Ldelete(layer, name, H5P_DEFAULT);
    put_dataset(layer, name, dims, type, storage);
  });
}

}  // namespace kvbench::testing_traces
