// Extra queries and scores in traces of tests, added with plain HDF5 calls, independent of
// lib/trace.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "make_head.hpp"
#include "trace_files.hpp"

namespace kvbench::testing_traces {

inline void put_floats(hid_t group, const char* name, const std::vector<hsize_t>& dims,
                       const std::vector<float>& values) {
  put_values(group, name, dims, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, values);
}

inline void put_integers(hid_t group, const char* name, const std::vector<std::int32_t>& values) {
  put_values(group, name, {static_cast<hsize_t>(values.size())}, H5T_STD_I32LE, H5T_NATIVE_INT32,
             values);
}

/// What a segment holds beside q and k.
struct SegmentParts {
  Index queries = 5;
  std::vector<std::int32_t> positions;  ///< empty: 0, 1, ... from `from` on
  std::int32_t from = 0;
  std::vector<float> residual_norm;  ///< empty: none
  std::optional<std::int64_t> prefix, first, last;
};

/// The group `path` below `parent`, made with those above it; the caller closes it.
inline hid_t make_group(hid_t parent, const std::string& path) {
  const Id links = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  const hid_t group = H5Gcreate2(parent, path.c_str(), links, H5P_DEFAULT, H5P_DEFAULT);
  return group;
}

/// Position, norms and attributes of a segment; the group has q and k.
inline void put_segment_parts(hid_t segment, const SegmentParts& parts) {
  std::vector<std::int32_t> positions = parts.positions;
  if (positions.empty()) {
    positions.resize(static_cast<std::size_t>(parts.queries));
    std::iota(positions.begin(), positions.end(), parts.from);
  }
  put_integers(segment, "position", positions);
  if (!parts.residual_norm.empty()) {
    put_floats(segment, "residual_norm", {parts.residual_norm.size()}, parts.residual_norm);
  }
  for (const auto& [name, value] :
       {std::pair{"prefix", parts.prefix}, {"first", parts.first}, {"last", parts.last}}) {
    if (value) {
      put_int(segment, name, *value);
    }
  }
}

/// Adds extra/<set>/<segment> of planted queries and keys to a layer's group.
inline void put_segment(hid_t layer, const std::string& set, int segment, const Shape& s,
                        DType type, const SegmentParts& parts, const Storage& storage = {}) {
  const Id at = make_group(layer, "extra/" + set + "/" + std::to_string(segment));
  ASSERT_GE(at, 0);
  const auto m = static_cast<hsize_t>(parts.queries);
  put_dataset(at, "q", {static_cast<hsize_t>(s.q_heads), m, static_cast<hsize_t>(s.d)}, type,
              storage);
  put_dataset(at, "k", {static_cast<hsize_t>(s.kv_heads), m, static_cast<hsize_t>(s.d)}, type,
              storage);
  put_segment_parts(at, parts);
}

/// Adds extra/<set>/<segment> of random queries and keys to a float16 layer of make_trace.hpp's
/// usual heads (4 query heads, 2 KV heads, d = 8), with norms 1, 2, 3, 4, 5, 1, ...
inline void put_random_segment(hid_t layer, const std::string& set, int segment, Index m,
                               Index prefix, std::optional<Range> about, unsigned seed) {
  const Id at = make_group(layer, "extra/" + set + "/" + std::to_string(segment));
  ASSERT_GE(at, 0);
  std::mt19937_64 generator(seed);
  const Id half = make_type(DType::float16, false);
  for (const auto& [name, heads] : {std::pair{"q", Index{4}}, {"k", 2}}) {
    const Matrix values = normal_matrix(heads * m, 8, 3.0, generator);
    put_values(at, name, {static_cast<hsize_t>(heads), static_cast<hsize_t>(m), 8}, half,
               H5T_NATIVE_FLOAT, std::vector<float>(values.data(), values.data() + heads * m * 8));
  }
  SegmentParts parts;
  parts.queries = m;
  parts.from = static_cast<std::int32_t>(prefix);
  parts.prefix = prefix;
  for (Index j = 0; j < m; ++j) {
    parts.residual_norm.push_back(1.0F + static_cast<float>(j % 5));
  }
  if (about) {
    parts.first = about->begin;
    parts.last = about->end;
  }
  put_segment_parts(at, parts);
}

/// Adds scores/<name>, [kv_heads, n] in C order, to a layer's group.
inline void put_scores(hid_t layer, const std::string& name, Index kv_heads, Index n,
                       const std::vector<float>& values, std::optional<std::int64_t> prefix) {
  if (H5Lexists(layer, "scores", H5P_DEFAULT) <= 0) {
    H5Gclose(make_group(layer, "scores"));
  }
  const Id group = H5Gopen2(layer, "scores", H5P_DEFAULT);
  put_floats(group, name.c_str(), {static_cast<hsize_t>(kv_heads), static_cast<hsize_t>(n)},
             values);
  if (prefix) {
    const Id data = H5Dopen2(group, name.c_str(), H5P_DEFAULT);
    put_int(data, "prefix", *prefix);
  }
}

}  // namespace kvbench::testing_traces
