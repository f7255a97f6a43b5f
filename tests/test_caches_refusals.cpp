// Caches files that are wrong: each refusal names the file, the path inside it, what it is and what
// was expected; and damaged files are refused or read, never more.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "caches_files.hpp"
#include "core/error.hpp"
#include "make_trace.hpp"
#include "replay_run.hpp"

namespace kvbench::test_caches_refusals {
namespace {

using namespace testing_caches;
using testing_replay::read_bytes;
using testing_replay::refusal;
using testing_replay::write_bytes;
using testing_traces::alter;
using testing_traces::put_double;
using testing_traces::put_number;
using testing_traces::temporary_path;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A change to the object at `inside`, and what the refusal must say behind the file's name.
struct Case {
  const char* inside;
  std::function<void(hid_t)> change;
  std::vector<std::string> says;
};

void expect_refused(const std::vector<Case>& cases, bool by_opening) {
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    const std::string path = plain_caches("case.h5");
    alter(path, cases[i].inside, cases[i].change);
    std::string message;
    if (by_opening) {
      message = refusal([&] { CacheReader{path}; });
    } else {
      const CacheReader reader(path);
      message = refusal([&] { reader.read(0, kPlace, kShape); });
    }
    EXPECT_EQ(message.rfind(path + ": /", 0), 0U) << message;
    for (const std::string& part : cases[i].says) {
      EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    }
  }
}

TEST(CachesRefusals, OfTheRoot) {
  const auto remove = [](const char* name) {
    return [name](hid_t root) { H5Adelete(root, name); };
  };
  expect_refused(
      {
          {"/", remove("format"), {"format", "missing", "expected a string"}},
          {"/", [](hid_t r) { put_int(r, "format", 1); }, {"format", "wrong type", "a string"}},
          {"/",
           [](hid_t r) { put_string(r, "format", "kvbench-trace"); },
           {"format is \"kvbench-trace\"", "expected \"kvbench-caches\""}},
          {"/", remove("version"), {"version", "missing"}},
          {"/", [](hid_t r) { put_int(r, "version", 2); }, {"version is 2, expected 1"}},
          {"/", [](hid_t r) { put_double(r, "version", 1.0); }, {"version", "an integer"}},
          {"/", remove("trace_sha256"), {"trace_sha256", "missing", "expected a string"}},
          {"/", [](hid_t r) { put_int(r, "trace_sha256", 7); }, {"trace_sha256", "wrong type"}},
          {"/", remove("protocol"), {"protocol is \"\", expected prefill, stream"}},
          {"/", [](hid_t r) { put_string(r, "protocol", "both"); }, {"protocol is \"both\""}},
          {"/", remove("sink"), {"sink", "missing", "an integer"}},
          {"/", remove("recent"), {"recent", "missing", "an integer"}},
          {"/", remove("queries"), {"queries", "missing", "an integer"}},
          {"/", [](hid_t r) { put_int(r, "sink", -1); }, {"sink is -1, expected at least 0"}},
          {"/", [](hid_t r) { put_int(r, "recent", -2); }, {"recent is -2, expected at least 0"}},
          {"/", [](hid_t r) { put_double(r, "queries", 8.5); }, {"queries", "an integer"}},
          {"/", [](hid_t r) { H5Ldelete(r, kGroup, H5P_DEFAULT); }, {"holds no group, expected"}},
          {"/",
           [](hid_t r) { put_reals(r, "stray", {1}, {1.0}); },
           {"/stray: expected a group, found another kind of object"}},
      },
      /*by_opening=*/true);
}

TEST(CachesRefusals, OfGroups) {
  const auto text = [](const char* name, const std::string& value) {
    return [=](hid_t group) { put_string(group, name, value); };
  };
  std::vector<Case> cases{
      {kGroup, [](hid_t g) { H5Adelete(g, "algorithm"); }, {kGroup, "algorithm is missing"}},
      {kGroup, [](hid_t g) { H5Adelete(g, "params"); }, {kGroup, "params is missing"}},
      {kGroup, [](hid_t g) { put_int(g, "params", 3); }, {kGroup, "params", "a string"}},
      {kGroup, [](hid_t g) { put_string(g, "budget", "half"); }, {"budget", "a number"}},
      {kGroup, [](hid_t g) { put_double(g, "seed", 1.0); }, {"seed", "an integer"}},
      {kGroup, [](hid_t g) { put_int(g, "seed", -1); }, {"seed is -1, expected at least 0"}},
      {kGroup, text("scores", "future"), {"scores is \"future\", expected past, all, none"}},
      {kGroup, text("scope", "prompt"), {"scope is \"prompt\", expected head, layer, layers"}},
  };
  for (const char* name : {"", "two words", "a,b", "a\nb", "caf\xc3\xa9", "a\"b"}) {
    cases.push_back({kGroup, text("algorithm", name), {kGroup, "algorithm is", "letters, digits"}});
  }
  cases.push_back({kGroup, text("algorithm", std::string(101, 'a')), {"up to 100"}});
  for (const char* params : {"b=1;a=2", "a=1;a=2", "a", "=1", "a=1;", ";a=1", "a=1;;b=2", "a b=1",
                             "a=1\n", "a=\xc3\xa9", "a=1;b"}) {
    cases.push_back({kGroup,
                     text("params", params),
                     {kGroup, "params is", "expected key=value;key=value with ascending keys"}});
  }
  for (const double budget : {-0.01, 1.0 + 1e-9, kNaN, kInfinity}) {
    cases.push_back({kGroup,
                     [=](hid_t g) { put_double(g, "budget", budget); },
                     {kGroup, "budget is", "expected a fraction in [0, 1]"}});
  }
  expect_refused(cases, /*by_opening=*/true);
}

TEST(CachesRefusals, OfTwoGroupsAlike) {
  const auto reference = [](const std::function<void(hid_t)>& change) {
    const std::string path = plain_caches("case.h5");
    alter(path, "/", [&](hid_t root) {
      const hid_t group = H5Gcreate2(root, "b", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      put_string(group, "algorithm", "my-own_1.2+x");
      put_string(group, "params", "a=1;b=x y");
      change(group);
      H5Gclose(group);
    });
    return path;
  };
  const std::string path = reference([](hid_t) {});
  const std::string message = refusal([&] { CacheReader{path}; });
  EXPECT_NE(message.find("/b: has the algorithm, params, budget and seed of a group, with spaces"),
            std::string::npos)
      << message;
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
  const auto remove = [](const char* name) {
    return [name](hid_t entry) { H5Ldelete(entry, name, H5P_DEFAULT); };
  };
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
  expect_refused(
      {
          {kEntry, remove("k"), {entry + "/k", "dataset is missing"}},
          {kEntry, remove("v"), {entry + "/v", "dataset is missing"}},
          {kEntry, [](hid_t e) { put_group(e, "k"); }, {entry + "/k", "expected a dataset"}},
          {kEntry, [](hid_t e) { put_group(e, "token"); }, {"/token: expected a dataset"}},
          {kEntry, [](hid_t e) { put_group(e, "k_den"); }, {"/k_den: expected a dataset"}},
          {kEntry, whole("k", {5, 4}), {"/k: elements are of another type", "floats"}},
          {kEntry, shaped("token", {5}), {"/token: elements are of another type", "integers"}},
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
      /*by_opening=*/false);
}

TEST(CachesRefusals, OfAttributesOfEntries) {
  std::vector<Case> cases;
  for (const char* name :
       {"aux_bytes", "payload_bytes", "quantised", "transient_bytes", "scoring_queries"}) {
    const std::string is = std::string(name) + " is ";
    cases.push_back({kEntry, [=](hid_t e) { put_int(e, name, -1); }, {is + "-1", "at least 0"}});
    cases.push_back({kEntry, [=](hid_t e) { put_double(e, name, 1.0); }, {name, "an integer"}});
    // Sums of several such numbers would not fit 64 bits.
    cases.push_back({kEntry,
                     [=](hid_t e) { put_int(e, name, std::numeric_limits<std::int64_t>::max()); },
                     {is + "9223372036854775807", "at most"}});
  }
  for (const double ms : {-0.5, kNaN, kInfinity}) {
    cases.push_back({kEntry,
                     [=](hid_t e) { put_double(e, "compress_ms", ms); },
                     {"compress_ms is", "finite number of at least 0"}});
  }
  for (const char* name : {"diag", "degenerate", "infeasible", "failed"}) {
    cases.push_back({kEntry, [=](hid_t e) { put_int(e, name, 1); }, {name, "a string"}});
    cases.push_back({kEntry,
                     [=](hid_t e) { put_string(e, name, "a\nb"); },
                     {name, "expected a line without control characters"}});
  }
  expect_refused(cases, /*by_opening=*/false);
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
    const std::string message = refusal([&] { reader.read(0, kPlace, kShape); });
    EXPECT_NE(message.find(kGroup + inside + ": expected a group, found another kind of object"),
              std::string::npos)
        << message;
  }
}

TEST(CachesRefusals, OfFilesThatAreNone) {
  const std::string path = temporary_path("none.h5");
  std::filesystem::remove(path);
  EXPECT_NE(refusal([&] { CacheReader{path}; }).find(path + ": cannot be opened"),
            std::string::npos);
  write_bytes(path, "my notes\n");
  EXPECT_NE(refusal([&] { CacheReader{path}; }).find(path + ": is not HDF5, expected caches"),
            std::string::npos);
  refusal([&] { CacheReader{std::filesystem::path(path).parent_path().string()}; });
  const std::string trace = testing_traces::planted_trace("trace.h5");
  EXPECT_NE(refusal([&] { CacheReader{trace}; }).find("expected \"kvbench-caches\""),
            std::string::npos);
}

// --------------------------------------------------------------------------------- damaged files

// True if all could be read.
bool readable(const std::string& path) {
  try {
    const CacheReader reader(path);
    for (std::size_t g = 0; g < reader.groups().size(); ++g) {
      reader.read(g, kPlace, kShape);
    }
    return true;
  } catch (const InputError&) {
    return false;
  }
}

TEST(CachesFuzz, Truncations) {
  const std::string whole = read_bytes(plain_caches("whole.h5"));
  const std::string path = temporary_path("cut.h5");
  constexpr std::size_t kCases = 150;
  for (std::size_t i = 0; i < kCases; ++i) {
    write_bytes(path, whole.substr(0, whole.size() * i / kCases));
    EXPECT_FALSE(readable(path)) << i;
  }
}

}  // namespace
}  // namespace kvbench::test_caches_refusals
