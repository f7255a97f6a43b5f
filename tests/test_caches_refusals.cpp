// Caches files that are wrong: each refusal names the file, the path inside it, what it is and what
// was expected. Damaged files: test_mutations.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "caches_files.hpp"
#include "files.hpp"
#include "spoiled.hpp"

namespace kvbench::test_caches_refusals {
namespace {

using namespace testing_caches;
using namespace testing_traces;
using testing_replay::refusal;
using testing_replay::write_bytes;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string plain() {
  return plain_caches("case.h5");
}

void open(const std::string& path) {
  CacheReader{path};
}

void read_entry(const std::string& path) {
  CacheReader(path).read(0, kPlace, kShape);
}

TEST(CachesRefusals, OfTheRoot) {
  expect_refusals(
      {
          {"/", drop_attribute("format"), {"format", "missing", "expected a string"}},
          {"/", integer("format", 1), {"format", "wrong type", "a string"}},
          {"/",
           text("format", "kvbench-trace"),
           {"format is \"kvbench-trace\"", "expected \"kvbench-caches\""}},
          {"/", drop_attribute("version"), {"version", "missing"}},
          {"/", integer("version", 2), {"version is 2, expected 1"}},
          {"/", real("version", 1.0), {"version", "an integer"}},
          {"/", drop_attribute("trace_sha256"), {"trace_sha256", "missing", "expected a string"}},
          {"/", integer("trace_sha256", 7), {"trace_sha256", "wrong type"}},
          {"/", drop_attribute("protocol"), {"protocol is \"\", expected prefill, stream"}},
          {"/", text("protocol", "both"), {"protocol is \"both\""}},
          {"/", drop_attribute("sink"), {"sink", "missing", "an integer"}},
          {"/", drop_attribute("recent"), {"recent", "missing", "an integer"}},
          {"/", drop_attribute("queries"), {"queries", "missing", "an integer"}},
          {"/", integer("sink", -1), {"sink is -1, expected at least 0"}},
          {"/", integer("recent", -2), {"recent is -2, expected at least 0"}},
          {"/", real("queries", 8.5), {"queries", "an integer"}},
          {"/", drop_link(kGroup), {"holds no group, expected"}},
          {"/",
           [](hid_t r) { put_reals(r, "stray", {1}, {1.0}); },
           {"/stray: expected a group, found another kind of object"}},
      },
      plain, open);
}

TEST(CachesRefusals, OfGroups) {
  std::vector<Spoiled> cases{
      {kGroup, drop_attribute("algorithm"), {kGroup, "algorithm is missing"}},
      {kGroup, drop_attribute("params"), {kGroup, "params is missing"}},
      {kGroup, integer("params", 3), {kGroup, "params", "a string"}},
      {kGroup, text("budget", "half"), {"budget", "a number"}},
      {kGroup, real("seed", 1.0), {"seed", "an integer"}},
      {kGroup, integer("seed", -1), {"seed is -1, expected at least 0"}},
      {kGroup, text("scores", "future"), {"scores is \"future\", expected past, all, none"}},
      {kGroup, text("scope", "prompt"), {"scope is \"prompt\", expected head, layer, layers"}},
  };
  for (const char* name : {"", "two words", "a,b", "a\nb", "caf\xc3\xa9", "a\"b"}) {
    cases.push_back({kGroup, text("algorithm", name), {kGroup, "algorithm is", "letters, digits"}});
  }
  cases.push_back({kGroup, text("algorithm", std::string(101, 'a')), {"up to 100"}});
  for (const char* params : {"b=1;a=2", "a=1;a=2", "a", "=1", "a=1;", ";a=1", "a=1;;b=2", "a b=1",
                             "a=1\n", "a=\x7f", "a=1;b"}) {
    cases.push_back({kGroup,
                     text("params", params),
                     {kGroup, "params is", "expected key=value;key=value with ascending keys"}});
  }
  for (const double budget : {-0.01, 1.0 + 1e-9, kNaN, kInfinity}) {
    cases.push_back(
        {kGroup, real("budget", budget), {kGroup, "budget is", "expected a fraction in [0, 1]"}});
  }
  expect_refusals(cases, plain, open);
}

TEST(CachesRefusals, OfTwoGroupsAlike) {
  const auto reference = [](const std::function<void(hid_t)>& change) {
    const std::string path = plain_caches("case.h5");
    alter(path, "/", [&](hid_t root) {
      const Id group = H5Gcreate2(root, "b", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      put_string(group, "algorithm", "my-own_1.2+x");
      put_string(group, "params", "a=1;b=x y");
      change(group);
    });
    return path;
  };
  testing_replay::expect_refusal(
      [&] { CacheReader{reference([](hid_t) {})}; },
      "/b: has the algorithm, params, budget and seed of a group, with spaces");
  // `scores` and `scope` do not tell two groups apart: rows would not either.
  refusal([&] { CacheReader{reference([](hid_t g) { put_string(g, "scope", "layer"); })}; });
  for (const std::function<void(hid_t)>& change : std::vector<std::function<void(hid_t)>>{
           [](hid_t g) { put_string(g, "algorithm", "other"); },
           [](hid_t g) { put_string(g, "params", ""); },
           [](hid_t g) { put_double(g, "budget", 0.0); },
           [](hid_t g) { put_int(g, "seed", 1); },
       }) {
    EXPECT_EQ(CacheReader(reference(change)).groups().size(), 2U);
  }
}

void put_group(hid_t entry, const char* name) {
  H5Ldelete(entry, name, H5P_DEFAULT);
  H5Gclose(H5Gcreate2(entry, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}

std::vector<double> with(std::size_t count, std::size_t at, double value) {
  std::vector<double> out(count, 0.25);
  out[at] = value;
  return out;
}

TEST(CachesRefusals, OfDatasets) {
  const auto shaped = [](const char* name, std::vector<hsize_t> sizes) {
    return [=](hid_t entry) {
      std::size_t count = 1;
      for (const hsize_t size : sizes) {
        count *= size;
      }
      put_reals(entry, name, sizes, std::vector<double>(count, 0.5));
    };
  };
  const auto valued = [](const char* name, std::vector<hsize_t> sizes, std::size_t at, double x) {
    return [=](hid_t entry) {
      const std::size_t count = sizes.size() == 1 ? sizes[0] : sizes[0] * sizes[1];
      put_reals(entry, name, sizes, with(count, at, x));
    };
  };
  const auto whole = [](const char* name, std::vector<hsize_t> sizes) {
    return [=](hid_t entry) {
      put_values(entry, name, sizes, H5T_STD_I32LE, H5T_NATIVE_INT32,
                 std::vector<std::int32_t>(20, 1));
    };
  };
  const std::string entry = kEntry;
  expect_refusals(
      {
          {kEntry, drop_link("k"), {entry + "/k", "dataset is missing"}},
          {kEntry, drop_link("v"), {entry + "/v", "dataset is missing"}},
          {kEntry, [](hid_t e) { put_group(e, "k"); }, {entry + "/k", "expected a dataset"}},
          {kEntry, [](hid_t e) { put_group(e, "token"); }, {"/token: expected a dataset"}},
          {kEntry, [](hid_t e) { put_group(e, "k_den"); }, {"/k_den: expected a dataset"}},
          {kEntry, whole("k", {5, 4}), {"/k: elements are int32", "floats"}},
          {kEntry, shaped("token", {5}), {"/token: elements are another 64-bit float", "integers"}},
          {kEntry, shaped("k", {5, 3}), {"/k: shape is [5, 3], expected [at most 20, 4]"}},
          {kEntry, shaped("k", {21, 4}), {"/k: shape is [21, 4], expected [at most 20, 4]"}},
          {kEntry, shaped("k", {5}), {"/k: shape is [5], expected [at most 20, 4]"}},
          {kEntry, shaped("k", {1, 5, 4}), {"/k: shape is [1, 5, 4]"}},
          {kEntry, shaped("v", {4, 3}), {"/v: shape is [4, 3], expected [5, 3]"}},
          {kEntry, shaped("v", {5, 4}), {"/v: shape is [5, 4], expected [5, 3]"}},
          {kEntry, shaped("log_weight", {4}), {"/log_weight: shape is [4], expected [5]"}},
          {kEntry, shaped("log_weight", {5, 1}), {"/log_weight: shape is [5, 1]"}},
          {kEntry,
           [](hid_t e) {
             put_tokens(e, {8, -1});
           },
           {"/token: shape is [2], expected [5]"}},
          {kEntry, shaped("k_den", {2, 3}), {"/k_den: shape is [2, 3]"}},
          {kEntry, shaped("k_den", {21, 4}), {"/k_den", "expected [at most 20, 4]"}},
          {kEntry, shaped("log_weight_den", {2}), {"/log_weight_den", "expected [5]"}},
          {kEntry,
           [&](hid_t e) {
             shaped("k_den", {2, 4})(e);
             shaped("log_weight_den", {5})(e);
           },
           {"/log_weight_den: shape is [5], expected [2]"}},
          {kEntry, valued("k", {5, 4}, 6, kNaN), {"/k: row 1, channel 2 is nan", "finite"}},
          {kEntry, valued("v", {5, 3}, 14, -kInfinity), {"/v: row 4, channel 2 is -inf"}},
          {kEntry, valued("k", {5, 4}, 0, 1e39), {"/k: row 0, channel 0 is inf"}},
          {kEntry, valued("k_den", {2, 4}, 7, kNaN), {"/k_den: row 1, channel 3 is nan"}},
          {kEntry, valued("log_weight", {5}, 2, kInfinity), {"/log_weight: entry 2 is inf"}},
          {kEntry, valued("log_weight", {5}, 2, kNaN), {"/log_weight: entry 2 is nan", "-inf"}},
          {kEntry, valued("log_weight", {5}, 4, 88.73), {"/log_weight: entry 4 is 88.73"}},
          // The float next to log(the largest float): its exponential is infinite.
          {kEntry, valued("log_weight", {5}, 0, 88.72284F), {"/log_weight: entry 0 is"}},
          {kEntry, valued("log_weight_den", {5}, 1, kNaN), {"/log_weight_den: entry 1 is nan"}},
          {kEntry,
           [](hid_t e) {
             put_tokens(e, {1, 2, -2, 4, 5});
           },
           {"/token: row 2 is -2"}},
          {kEntry,
           [](hid_t e) {
             put_tokens(e, {1, 2, 3, 4, (std::int64_t{1} << 32) + 5});
           },
           {"/token: row 4 is 4294967301"}},
          {kEntry,
           [](hid_t e) {
             put_tokens(e, {1, 2, 3, -(std::int64_t{1} << 40), 5});
           },
           {"/token: row 3 is -1099511627776"}},
      },
      plain, read_entry);
}

TEST(CachesRefusals, OfAttributesOfEntries) {
  std::vector<Spoiled> cases;
  for (const char* name :
       {"aux_bytes", "payload_bytes", "quantised", "transient_bytes", "scoring_queries"}) {
    const std::string is = std::string(name) + " is ";
    cases.push_back({kEntry, integer(name, -1), {is + "-1", "at least 0"}});
    cases.push_back({kEntry, real(name, 1.0), {name, "an integer"}});
    // Sums of several such numbers would not fit 64 bits.
    cases.push_back({kEntry,
                     integer(name, std::numeric_limits<std::int64_t>::max()),
                     {is + "9223372036854775807", "at most"}});
  }
  for (const double ms : {-0.5, kNaN, kInfinity}) {
    cases.push_back(
        {kEntry, real("compress_ms", ms), {"compress_ms is", "finite number of at least 0"}});
  }
  for (const char* name : {"diag", "degenerate", "infeasible", "failed"}) {
    cases.push_back({kEntry, integer(name, 1), {name, "a string"}});
    cases.push_back(
        {kEntry, text(name, "a\nb"), {name, "expected a line without control characters"}});
  }
  expect_refusals(cases, plain, read_entry);
}

TEST(CachesRefusals, OfAWayThatIsNoGroup) {
  for (const std::string inside : {"/prompts", "/prompts/p 0", "/prompts/p 0/layers",
                                   "/prompts/p 0/layers/7", "/prompts/p 0/layers/7/1"}) {
    const std::string path = plain_caches("case.h5");
    alter(path, kGroup, [&](hid_t group) {
      H5Ldelete(group, inside.c_str() + 1, H5P_DEFAULT);
      put_reals(group, inside.c_str() + 1, {1}, {1.0});
    });
    const CacheReader reader(path);
    testing_replay::expect_refusal(
        [&] { reader.read(0, kPlace, kShape); },
        kGroup + inside + ": expected a group, found another kind of object");
  }
}

TEST(CachesRefusals, OfFilesThatAreNone) {
  const std::string path = temporary_path("none.h5");
  std::filesystem::remove(path);
  testing_replay::expect_refusal([&] { CacheReader{path}; }, path + ": cannot be opened");
  write_bytes(path, "my notes\n");
  testing_replay::expect_refusal([&] { CacheReader{path}; },
                                 path + ": is not HDF5, expected caches");
  refusal([&] { CacheReader{std::filesystem::path(path).parent_path().string()}; });
}

}  // namespace
}  // namespace kvbench::test_caches_refusals
