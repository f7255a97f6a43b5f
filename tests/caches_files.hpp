// Caches files for tests: made with plain HDF5 calls, independent of lib/trace, and random entries.
#pragma once

#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/float16.hpp"
#include "trace/caches.hpp"
#include "trace_files.hpp"

namespace kvbench::testing_caches {

using testing_traces::Id;
using testing_traces::planted;
using testing_traces::put_int;
using testing_traces::put_string;
using testing_traces::put_values;
using testing_traces::put_variable_string;

/// How a plain file's datasets and strings are stored.
struct Style {
  hid_t real = H5T_IEEE_F64LE;    ///< of keys, values and weights
  hid_t integer = H5T_STD_I64LE;  ///< of tokens
  bool packed = false;            ///< chunks of two rows, shuffled and deflated
  bool variable_strings = false;
};

inline void put_text(hid_t object, const char* name, const std::string& text, const Style& style) {
  if (style.variable_strings) {
    put_variable_string(object, name, text);
  } else {
    put_string(object, name, text);
  }
}

inline void put_reals(hid_t group, const char* name, const std::vector<hsize_t>& sizes,
                      const std::vector<double>& values, const Style& style = {}) {
  put_values(group, name, sizes, style.real, H5T_NATIVE_DOUBLE, values, style.packed);
}

/// [rows, cols] of planted values.
inline void put_planted(hid_t group, const char* name, Index rows, Index cols,
                        const Style& style = {}) {
  std::vector<double> values;
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < cols; ++c) {
      values.push_back(static_cast<double>(planted(name[0], 0, r, c)));
    }
  }
  put_reals(group, name, {static_cast<hsize_t>(rows), static_cast<hsize_t>(cols)}, values, style);
}

inline void put_tokens(hid_t group, const std::vector<std::int64_t>& tokens,
                       const Style& style = {}) {
  put_values(group, "token", {tokens.size()}, style.integer, H5T_NATIVE_INT64, tokens,
             style.packed);
}

inline constexpr Index kRows = 5, kD = 4, kDv = 3;
inline constexpr const char* kGroup = "/a group, with spaces";
inline constexpr const char* kEntry = "/a group, with spaces/prompts/p 0/layers/7/1";
inline const CachePlace kPlace{"p 0", 7, 1};
inline const CacheReader::Shape kShape{20, kD, kDv};

/// A whole file of one group and one entry: 5 rows, weights log 1 .. log 5, tokens 8 -1 6 7 -1.
inline std::string plain_caches(const std::string& name, const Style& style = {}) {
  const testing_traces::Quiet quiet;
  const std::string path = testing_traces::temporary_path(name);
  const Id file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  put_text(file, "format", "kvbench-caches", style);
  put_int(file, "version", 1);
  put_text(file, "trace_sha256", std::string(64, 'a'), style);
  put_text(file, "protocol", "prefill", style);
  put_int(file, "sink", 4);
  put_int(file, "recent", 12);
  put_int(file, "queries", 8);
  const Id links = H5Pcreate(H5P_LINK_CREATE);
  H5Pset_create_intermediate_group(links, 1);
  const Id entry = H5Gcreate2(file, kEntry, links, H5P_DEFAULT, H5P_DEFAULT);
  const Id group = H5Gopen2(file, kGroup, H5P_DEFAULT);
  put_text(group, "algorithm", "my-own_1.2+x", style);
  put_text(group, "params", "a=1;b=x y", style);
  put_planted(entry, "k", kRows, kD, style);
  put_planted(entry, "v", kRows, kDv, style);
  put_reals(entry, "log_weight", {kRows},
            {0.0, std::log(2.0), std::log(3.0), std::log(4.0), std::log(5.0)}, style);
  put_tokens(entry, {8, -1, 6, 7, -1}, style);
  return path;
}

// ------------------------------------------------------------------------------ random entries

inline Matrix random_rows(Index rows, Index cols, DType dtype, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Matrix m(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    m.data()[i] = round_to(dtype, normal(random));
  }
  return m;
}

/// An entry whose optional members are there or not by chance; tokens are not of any head.
inline HeadCache random_cache(Index most, Index d, Index dv, DType dtype, std::mt19937_64& random) {
  const auto chance = [&] { return random() % 2 == 0; };
  const auto below = [&](Index n) {
    return static_cast<Index>(random() % static_cast<std::uint64_t>(n));
  };
  const auto weights = [&](Index rows) {
    std::vector<float> out;
    std::normal_distribution<float> normal;
    for (Index i = 0; i < rows; ++i) {
      out.push_back(random() % 8 == 0 ? -std::numeric_limits<float>::infinity() : normal(random));
    }
    return out;
  };
  HeadCache c;
  if (random() % 10 == 0) {
    (chance() ? c.infeasible : c.failed) = "needs 7 bytes";
    c.scoring_queries = chance() ? std::optional<Index>(below(9)) : std::nullopt;
    return c;
  }
  const Index rows = random() % 5 == 0 ? 0 : below(most + 1);
  c.k = random_rows(rows, d, chance() ? dtype : DType::float32, random);
  c.v = random_rows(rows, dv, chance() ? dtype : DType::float32, random);
  if (chance()) {
    c.log_weight = weights(rows);
  }
  if (chance()) {
    for (Index i = 0; i < rows; ++i) {
      c.token.push_back(static_cast<std::int32_t>(chance() ? i : -1));
    }
  }
  if (chance()) {
    CacheDenominator& den = c.denominator.emplace();
    const bool own = chance() || rows == 0;
    if (own) {
      den.k = random_rows(below(most + 1), d, dtype, random);
    }
    if (chance() || !own) {
      den.log_weight = weights(own ? den.k->rows() : rows);
    }
  }
  if (chance()) {
    c.aux_bytes = below(1000);
  }
  if (chance()) {
    c.payload_bytes = below(1000);
  }
  c.quantized = chance() ? below(5) : 0;
  c.transient_bytes = chance() ? below(5000) : 0;
  if (chance()) {
    c.compress_ms = 0.125 * static_cast<double>(below(100));
  }
  if (chance()) {
    c.scoring_queries = below(100);
  }
  c.degenerate = chance() ? "a sketch of one cell" : "";
  c.diag = chance() ? "rank=3;why=\xc3\xa9" : "";
  return c;
}

}  // namespace kvbench::testing_caches
