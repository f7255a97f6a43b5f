// Caches files: what CacheWriter writes comes back, what other programs write is read, and what is
// wrong is refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "caches_files.hpp"
#include "core/error.hpp"
#include "make_head.hpp"

namespace kvbench::test_caches {
namespace {

using namespace testing_caches;
using namespace testing_traces;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

auto members(const CacheGroup& g) {
  return std::tuple(g.name, g.algorithm, g.params, g.budget, g.seed, g.scores, g.scope);
}

auto members(const CachesMeta& m) {
  return std::tuple(m.trace_sha256, m.protocol, m.sink, m.recent, m.queries, m.plan);
}

// What comes back of what was written: an empty list of weights or tokens is the same as none.
void expect_equal(const HeadCache& got, const HeadCache& expected, const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_TRUE(same_bits(got.k, expected.k));
  EXPECT_TRUE(same_bits(got.v, expected.v));
  EXPECT_EQ(got.log_weight, expected.log_weight);
  EXPECT_EQ(got.token, expected.token);
  ASSERT_EQ(got.denominator.has_value(), expected.denominator.has_value());
  if (got.denominator) {
    ASSERT_EQ(got.denominator->k.has_value(), expected.denominator->k.has_value());
    if (got.denominator->k) {
      EXPECT_TRUE(same_bits(*got.denominator->k, *expected.denominator->k));
    }
    EXPECT_EQ(got.denominator->log_weight, expected.denominator->log_weight);
  }
  EXPECT_EQ(got.aux_bytes, expected.aux_bytes);
  EXPECT_EQ(got.payload_bytes, expected.payload_bytes);
  EXPECT_EQ(got.quantized, expected.quantized);
  EXPECT_EQ(got.transient_bytes, expected.transient_bytes);
  EXPECT_EQ(got.compress_ms, expected.compress_ms);
  EXPECT_EQ(got.scoring_queries, expected.scoring_queries);
  EXPECT_EQ(got.infeasible, expected.infeasible);
  EXPECT_EQ(got.failed, expected.failed);
  EXPECT_EQ(got.degenerate, expected.degenerate);
  EXPECT_EQ(got.diag, expected.diag);
}

// A denominator without keys and weights of its own is none.
bool says_nothing(const std::optional<CacheDenominator>& d) {
  return d && !d->k && d->log_weight.empty();
}

TEST(Caches, WhatIsWrittenComesBack) {
  constexpr Index kMax = 9, kWidth = 6, kValueWidth = 5;
  const std::vector<CacheGroup> groups{
      {"0", "exact", "", std::nullopt, 0, "none", "head"},
      {"1 x", "adakv", "floor=0.2;kernel=5", 0.25, 3, "past", "layer"},
      {"10", "a+b", "T=2", 0.0, 7, "all", "layers"},
      {"11", "a+b", "T=2", 1.0, std::numeric_limits<std::uint64_t>::max(), "all", "head"},
      {"12", "a+b", "T=2", 1.0, std::numeric_limits<std::uint64_t>::max() - 1, "all", "head"},
  };
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    std::mt19937_64 random(11);
    const std::string path = temporary_path("c.h5");
    std::filesystem::remove(path);
    std::vector<std::map<std::string, HeadCache>> written(groups.size());
    CachesMeta meta{{std::string(64, 'a'), std::string(64, 'b')}, "stream", 3, 12, 8, "plan 1/2"};
    CacheWriter writer(path, meta);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      writer.begin_group(groups[g]);
      for (const char* prompt : {"p0", "p1"}) {
        for (const Index layer : {0, 12}) {
          for (Index kv = 0; kv < 5; ++kv) {
            HeadCache cache = random_cache(kMax, kWidth, kValueWidth, dtype, random);
            if (says_nothing(cache.denominator)) {
              cache.denominator.reset();
            }
            writer.put({prompt, layer, kv}, cache, dtype);
            written[g].emplace(std::string(prompt) + " " + std::to_string(layer * 10 + kv), cache);
          }
        }
      }
    }
    EXPECT_FALSE(std::filesystem::exists(path)) << "not yet whole";
    writer.close();
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));

    const CacheReader reader(path);
    EXPECT_EQ(members(reader.meta()), members(meta));
    ASSERT_EQ(reader.groups().size(), groups.size());
    const CacheReader::Shape shape{kMax, kWidth, kValueWidth};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      EXPECT_EQ(members(reader.groups()[g]), members(groups[g]));
      for (const auto& [key, cache] : written[g]) {
        const Index at = std::stol(key.substr(3));
        const CachePlace place{key.substr(0, 2), at / 10, at % 10};
        EXPECT_TRUE(reader.has(g, place));
        const auto back = reader.read(g, place, shape);
        ASSERT_TRUE(back.has_value());
        expect_equal(*back, cache, reader.where(g, place));
      }
      EXPECT_FALSE(reader.has(g, {"p0", 0, 5}));
      EXPECT_FALSE(reader.read(g, {"p2", 0, 0}, shape).has_value());
      EXPECT_FALSE(reader.read(g, {"p0", 1, 0}, shape).has_value());
    }
    EXPECT_EQ(reader.where(1, {"p0", 12, 3}), path + ": /1 x/prompts/p0/layers/12/3");
  }
}

TEST(Caches, HalvesAreStoredAsHalvesOnlyWhereTheyAre) {
  std::mt19937_64 random(3);
  HeadCache cache;
  cache.k = random_rows(4, 2, DType::float16, random);
  cache.v = random_rows(4, 2, DType::float16, random);
  cache.v.row(3)[1] = 1.0F + 1e-6F;
  const std::string path = temporary_path("c.h5");
  CacheWriter writer(path, {{"x"}, "prefill", 0, 8, 8, ""});
  writer.begin_group({"g", "a", "", {}, 0, "past", "head"});
  writer.put({"p", 0, 0}, cache, DType::float16);
  writer.put({"p", 0, 1}, cache, DType::bfloat16);
  writer.close();
  const Id file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const auto bytes = [&](const std::string& name) {
    const Id data = H5Dopen2(file, ("/g/prompts/p/layers/0/" + name).c_str(), H5P_DEFAULT);
    const Id type = H5Dget_type(data);
    const std::size_t size = H5Tget_size(type);
    return size;
  };
  EXPECT_EQ(bytes("0/k"), 2U);
  EXPECT_EQ(bytes("0/v"), 4U);
  EXPECT_EQ(bytes("1/k"), 4U);
}

TEST(Caches, AWriterThatIsNotClosedLeavesNoFile) {
  const std::string path = temporary_path("c.h5");
  std::filesystem::remove(path);
  {
    CacheWriter writer(path, {{"x"}, "prefill", 0, 8, 8, ""});
    EXPECT_THROW(writer.put({"p", 0, 0}, {}, DType::float32), std::logic_error);
    writer.begin_group({"g", "a", "", {}, 0, "past", "head"});
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_THROW(CacheWriter("/nowhere/c.h5", {{"x"}, "prefill", 0, 8, 8, ""}), IoError);
}

// ------------------------------------------------------------------------- of other programs

void expect_planted(const std::string& path) {
  const CacheReader reader(path);
  ASSERT_EQ(reader.groups().size(), 1U);
  EXPECT_EQ(members(reader.groups()[0]),
            members({"a group, with spaces", "my-own_1.2+x", "a=1;b=x y", {}, 0, "past", "head"}));
  EXPECT_EQ(members(reader.meta()), members({{std::string(64, 'a')}, "prefill", 4, 12, 8, ""}));
  const auto cache = reader.read(0, kPlace, kShape);
  ASSERT_TRUE(cache.has_value());
  ASSERT_EQ(cache->k.rows(), kRows);
  ASSERT_EQ(cache->v.rows(), kRows);
  for (Index r = 0; r < kRows; ++r) {
    for (Index c = 0; c < kD; ++c) {
      EXPECT_EQ(cache->k.row(r)[c], planted('k', 0, r, c));
    }
    for (Index c = 0; c < kDv; ++c) {
      EXPECT_EQ(cache->v.row(r)[c], planted('v', 0, r, c));
    }
    // The file has log(r + 1) in the style's type, which halves hold to 2^-11.
    EXPECT_NEAR(cache->log_weight[r], std::log(static_cast<float>(r + 1)), 1e-3F);
  }
  EXPECT_EQ(cache->token, (std::vector<std::int32_t>{8, -1, 6, 7, -1}));
  EXPECT_FALSE(cache->denominator || cache->aux_bytes || cache->payload_bytes ||
               cache->compress_ms || cache->scoring_queries);
  EXPECT_EQ(cache->quantized, 0);
}

TEST(Caches, OtherProgramsFilesAreRead) {
  const Id half = make_type(DType::float16, false);
  const Id big_half = make_type(DType::float16, true);
  for (const hid_t real : {H5T_IEEE_F64LE, H5T_IEEE_F32LE, H5T_IEEE_F64BE, H5T_IEEE_F32BE,
                           hid_t{half}, hid_t{big_half}}) {
    for (const hid_t integer : {H5T_STD_I64LE, H5T_STD_I32BE, H5T_STD_I8LE}) {
      for (const bool packed : {false, true}) {
        expect_planted(plain_caches("plain.h5", {real, integer, packed, packed}));
      }
    }
  }
}

TEST(Caches, WhatTheFormatDoesNotNameIsIgnored) {
  const std::string path = plain_caches("plain.h5");
  alter(path, "/", [](hid_t root) {
    put_string(root, "author", "somebody");
    const std::int32_t one = 1;
    put_number(root, "version", H5T_NATIVE_INT32, &one, 1);  // an array of one
  });
  alter(path, kGroup, [](hid_t group) { put_double(group, "temperature", 0.5); });
  alter(path, kEntry, [](hid_t entry) {
    put_string(entry, "note", "x");
    put_reals(entry, "scores", {2}, {1.0, 2.0});
  });
  expect_planted(path);
}

TEST(Caches, OptionalMembersOfOtherPrograms) {
  const std::string path = plain_caches("plain.h5");
  alter(path, kGroup, [](hid_t group) {
    put_int(group, "budget", 1);  // a number is a number
    put_int(group, "seed", 12);
    put_string(group, "scores", "none");
    put_string(group, "scope", "layers");
    put_string(group, "params", "");
  });
  alter(path, kEntry, [](hid_t entry) {
    H5Ldelete(entry, "token", H5P_DEFAULT);
    H5Ldelete(entry, "log_weight", H5P_DEFAULT);
    put_planted(entry, "k_den", 2, kD);
    put_reals(entry, "log_weight_den", {2}, {-std::numeric_limits<double>::infinity(), 88.7});
    put_int(entry, "aux_bytes", 5);
    put_int(entry, "payload_bytes", 6);
    put_int(entry, "quantised", 1);
    put_int(entry, "transient_bytes", 8);
    put_double(entry, "compress_ms", 0.5);
    put_int(entry, "scoring_queries", 9);
    put_string(entry, "degenerate", "why");
    put_variable_string(entry, "diag", "a=b");
  });
  const CacheReader reader(path);
  EXPECT_EQ(members(reader.groups()[0]),
            members({"a group, with spaces", "my-own_1.2+x", "", 1.0, 12, "none", "layers"}));
  const auto cache = reader.read(0, kPlace, kShape);
  ASSERT_TRUE(cache && cache->denominator && cache->denominator->k);
  EXPECT_TRUE(cache->token.empty());
  EXPECT_TRUE(cache->log_weight.empty());
  EXPECT_EQ(cache->denominator->k->rows(), 2);
  EXPECT_EQ(cache->denominator->k->row(1)[3], planted('k', 0, 1, 3));
  EXPECT_EQ(cache->denominator->log_weight, (std::vector<float>{-kInfinity, 88.7F}));
  EXPECT_EQ(cache->aux_bytes, 5);
  EXPECT_EQ(cache->payload_bytes, 6);
  EXPECT_EQ(cache->quantized, 1);
  EXPECT_EQ(cache->transient_bytes, 8);
  EXPECT_EQ(cache->compress_ms, 0.5);
  EXPECT_EQ(cache->scoring_queries, 9);
  EXPECT_EQ(cache->degenerate, "why");
  EXPECT_EQ(cache->diag, "a=b");
}

}  // namespace
}  // namespace kvbench::test_caches
