// Seeded damage of every kind, to traces and caches files: bits, bytes, splices and truncations of
// the file, and attributes, links and shapes that HDF5 itself wrote wrong. Each file is opened and
// all of it read, or it is refused, in bounded time and memory. KVBENCH_MUTATIONS: how many traces
// and how many caches files (1000 each); KVBENCH_MUTATION: this one alone.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "caches_files.hpp"
#include "core/error.hpp"
#include "damage.hpp"
#include "extra_traces.hpp"
#include "files.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"
#include "trace_files.hpp"

namespace kvbench::test_trace_mutations {
namespace {

using testing_replay::below;
using testing_replay::damage_bytes;
using testing_replay::number_of;
using testing_replay::one_of;
using testing_replay::Random;
using testing_replay::read_bytes;
using testing_replay::write_bytes;
using testing_traces::alter;
using testing_traces::planted_trace;
using testing_traces::put_number;
using testing_traces::put_segment;
using testing_traces::Storage;
using testing_traces::temporary_path;

// Of processor time, for one file. An object may take 2 s, twice; without that limit HDF5 runs for
// ever on some files.
constexpr double kMaxSeconds = 30;
constexpr rlim_t kMaxMemory = rlim_t{1} << 30;

// Processor time of this process and of those that it waited for.
double seconds_used() {
  double all = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(who, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime}) {
      all += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return all;
}

// Bounds what this process may hold from now on, as long as it lives.
class MemoryLimit {
 public:
  MemoryLimit() {
    getrlimit(RLIMIT_AS, &before_);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit now = before_;
    now.rlim_cur =
        std::min(now.rlim_max, pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kMaxMemory);
    setrlimit(RLIMIT_AS, &now);
#endif
  }
  ~MemoryLimit() {
    setrlimit(RLIMIT_AS, &before_);
  }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

// ------------------------------------------------------------------------------------- good files

// Opens a file and reads all of it.
void read_trace(const std::string& path) {
  const TraceReader reader(path, Require::keys);
  validate_values(reader);
  for (std::size_t p = 0; p < reader.meta().prompts.size(); ++p) {
    reader.read_token_ids(p);
  }
}

void read_caches(const std::string& path) {
  const CacheReader reader(path);
  for (std::size_t g = 0; g < reader.groups().size(); ++g) {
    reader.read(g, testing_caches::kPlace, testing_caches::kShape);
  }
}

struct Good {
  std::string bytes;
  void (*read)(const std::string&);
  std::vector<std::string> objects;  // groups and datasets
  std::vector<std::string> attributes;
};

Good good_trace(bool newest, const Storage& storage, DType type) {
  const std::string path =
      planted_trace("good.h5", type, testing_traces::small_shape(), storage, newest);
  alter(path, "/", [](hid_t root) {
    // Strings of variable length, as h5py writes them, lie in a heap of their own.
    testing_caches::put_variable_string(root, "model", std::string(60, 'm'));
    testing_caches::put_variable_string(root, "source", "s");
    const hid_t rope = H5Gcreate2(root, "rope", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    testing_caches::put_variable_string(rope, "layout", "half");
    for (const char* name : {"cos", "sin"}) {
      testing_caches::put_values(rope, name, {560, 4}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
                                 std::vector<float>(560 * 4, 0.5F), true);
    }
    H5Gclose(rope);
  });
  alter(path, "/prompts/a/layers/0", [&](hid_t layer) {
    testing_traces::put_double(layer, "scale", 0.5);
    const std::array<std::uint8_t, 1> heads{1};
    put_number(layer, "retrieval_heads", H5T_NATIVE_UINT8, heads.data(), 1);
    const std::array<float, 2> sinks{0.5F, -1.0F};
    put_number(layer, "sink_logit", H5T_NATIVE_FLOAT, sinks.data(), 2);
    const std::int64_t window = 20;
    put_number(layer, "window", H5T_NATIVE_INT64, &window, 1);
    testing_caches::put_values(layer, "residual_norm", {10}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
                               std::vector<float>(10, 1.5F));
    testing_caches::put_values(layer, "o_proj", {6, 8}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
                               std::vector<float>(48, 0.25F));
    testing_traces::SegmentParts segment;
    segment.residual_norm.assign(5, 2.0F);
    segment.prefix = segment.last = 30;
    segment.first = 0;
    put_segment(layer, "repeat", 0, testing_traces::small_shape(), type, segment, storage);
    put_segment(layer, "repeat", 1, testing_traces::small_shape(), type, {});
    testing_traces::put_scores(layer, "gate", 1, 40, std::vector<float>(40, -1.0F), 30);
  });
  read_trace(path);
  return {
      read_bytes(path),
      read_trace,
      {"/", "/prompts", "/prompts/a", "/prompts/a/layers", "/prompts/a/layers/0",
       "/prompts/a/layers/0/q", "/prompts/a/layers/0/k", "/prompts/a/layers/0/v",
       "/prompts/a/token_ids", "/rope", "/rope/cos", "/prompts/a/layers/0/o_proj",
       "/prompts/a/layers/0/extra", "/prompts/a/layers/0/extra/repeat",
       "/prompts/a/layers/0/extra/repeat/0", "/prompts/a/layers/0/extra/repeat/0/q",
       "/prompts/a/layers/0/extra/repeat/0/position", "/prompts/a/layers/0/scores",
       "/prompts/a/layers/0/scores/gate"},
      {"format", "version", "dtype", "rope", "scale", "model", "n_tokens", "fisher",
       "retrieval_heads", "sink_logit", "window", "q_start", "layout", "prefix", "first", "last"}};
}

Good good_caches(hid_t real, bool packed, bool variable_strings) {
  const testing_caches::Style style{real, H5T_STD_I32LE, packed, variable_strings};
  const std::string path = testing_caches::plain_caches("good.h5", style);
  alter(path, testing_caches::kEntry, [&](hid_t entry) {
    testing_traces::put_int(entry, "aux_bytes", 20);
    testing_caches::put_variable_string(entry, "diag", "diagnostics=all fine");
    testing_caches::put_planted(entry, "k_den", 3, testing_caches::kD, style);
    testing_caches::put_reals(entry, "log_weight_den", {3}, {0.0, 0.5, -1.0}, style);
  });
  read_caches(path);
  const std::string group = testing_caches::kGroup;
  const std::string entry = testing_caches::kEntry;
  return {
      read_bytes(path),
      read_caches,
      {"/", group, group + "/prompts", group + "/prompts/p 0", entry, entry + "/k", entry + "/v",
       entry + "/log_weight", entry + "/token", entry + "/log_weight_den", entry + "/k_den"},
      {"format", "version", "trace_sha256", "sink", "algorithm", "params", "budget", "seed",
       "aux_bytes", "compress_ms", "diag", "infeasible"}};
}

std::vector<Good> good_traces() {
  Storage plain;
  const Storage packed = testing_traces::packed_storage();
  Storage summed = packed;
  summed.settings.push_back([](hid_t p) { H5Pset_fletcher32(p); });
  Storage compact;
  compact.layout = Storage::Layout::compact;
  return {good_trace(false, packed, DType::float16), good_trace(true, packed, DType::float32),
          good_trace(false, plain, DType::bfloat16), good_trace(true, summed, DType::float16),
          good_trace(false, compact, DType::bfloat16)};
}

std::vector<Good> every_good_caches() {
  return {good_caches(H5T_IEEE_F32LE, false, true), good_caches(H5T_IEEE_F32LE, true, false),
          good_caches(H5T_IEEE_F64LE, true, true), good_caches(H5T_IEEE_F32BE, false, false)};
}

// ----------------------------------------------------------------------------------------- damage

// An attribute of any type, most of them wrong.
void damage_attribute(Random& random, hid_t object, const std::string& name) {
  H5Adelete(object, name.c_str());
  const std::vector<std::uint8_t> zeros(std::size_t{1} << 16, 0);
  const std::array<hsize_t, 4> counts{0, 1, 5, 4000};
  const hsize_t count = one_of(random, counts);
  const std::array types{H5T_NATIVE_INT8, H5T_STD_I64BE,      H5T_NATIVE_UINT64, H5T_NATIVE_DOUBLE,
                         H5T_IEEE_F32BE,  H5T_NATIVE_LDOUBLE, H5T_STD_REF_OBJ,   H5T_UNIX_D32LE};
  switch (below(random, 4)) {
    case 0: testing_caches::put_variable_string(object, name.c_str(), "x\ny"); break;
    case 1: testing_traces::put_string(object, name.c_str(), std::string(3000, 'y')); break;
    case 2: {
      const hid_t compound = H5Tcreate(H5T_COMPOUND, 8);
      H5Tinsert(compound, "a", 0, H5T_NATIVE_INT64);
      put_number(object, name.c_str(), compound, zeros.data(), count);
      H5Tclose(compound);
      break;
    }
    default: put_number(object, name.c_str(), one_of(random, types), zeros.data(), count); break;
  }
}

// A link in place of `name`, or beside it.
void damage_link(Random& random, hid_t file, const Good& good) {
  const std::string name = good.objects[1 + below(random, good.objects.size() - 1)];
  const std::string target = one_of(random, good.objects);
  const std::string at = below(random, 2) == 0 ? name : name + "/7";
  const hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
  const hid_t kept = H5Oopen(file, target.c_str(), H5P_DEFAULT);
  H5Ldelete(root, at.c_str(), H5P_DEFAULT);
  switch (below(random, 4)) {
    case 0: H5Lcreate_soft(target.c_str(), root, at.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
    case 1:
      H5Lcreate_external("/dev/zero", target.c_str(), root, at.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      break;
    default: H5Olink(kept, root, at.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
  }
  H5Oclose(kept);
  H5Gclose(root);
}

// A dataset of a shape and chunks that claim anything, never written.
void damage_shape(Random& random, hid_t file, const Good& good) {
  const std::string name = good.objects.back();
  const std::array<hsize_t, 6> sizes{1, 8, 40, 1 << 14, hsize_t{1} << 31, hsize_t{1} << 40};
  std::vector<hsize_t> dims(1 + below(random, 3));
  std::vector<hsize_t> chunk(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    dims[i] = one_of(random, sizes);
    chunk[i] = std::min<hsize_t>(dims[i], one_of(random, sizes) % 5000 + 1);
  }
  const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(plist, static_cast<int>(chunk.size()), chunk.data());
  H5Pset_deflate(plist, 1);
  H5Ldelete(file, name.c_str(), H5P_DEFAULT);
  const hid_t data =
      H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  if (data >= 0) {
    H5Dclose(data);
  }
  H5Pclose(plist);
  H5Sclose(space);
}

void damage_objects(Random& random, const std::string& path, const Good& good) {
  const std::size_t kind = below(random, 4);
  const std::string object = one_of(random, good.objects);
  if (kind == 0) {
    alter(path, "/", [&](hid_t root) { damage_link(random, root, good); });
  } else if (kind == 1) {
    alter(path, "/", [&](hid_t root) { damage_shape(random, root, good); });
  } else {
    alter(path, object.c_str(),
          [&](hid_t o) { damage_attribute(random, o, one_of(random, good.attributes)); });
  }
}

// --------------------------------------------------------------------------------------- the test

void try_damage(const std::vector<Good>& good) {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  const std::uint64_t alone = number_of("KVBENCH_MUTATION", kAll);
  const std::uint64_t count = number_of("KVBENCH_MUTATIONS", 1000);
  const std::string path = temporary_path("damaged.h5");
  std::uint64_t read = 0;
  std::uint64_t refused = 0;
  std::uint64_t hdf5_died = 0;
  double slowest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (alone != kAll && i != alone) {
      continue;
    }
    Random random(i);
    const Good& from = good[i % good.size()];
    std::string bytes = from.bytes;
    write_bytes(path, bytes);
    const std::size_t kind = below(random, 8);
    if (kind < 2) {
      damage_objects(random, path, from);
      bytes = read_bytes(path);
    }
    if (kind > 0) {
      damage_bytes(random, bytes);
    }
    write_bytes(path, bytes);
    SCOPED_TRACE("KVBENCH_MUTATION=" + std::to_string(i));
    const double start = seconds_used();
    try {
      const MemoryLimit limit;
      from.read(path);
      ++read;
    } catch (const InputError& e) {
      const std::string message = e.what();
      EXPECT_EQ(message.rfind(path, 0), 0U) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      hdf5_died += message.find("is damaged: HDF5") != std::string::npos ? 1U : 0U;
      ++refused;
    } catch (const std::exception& e) {
      ADD_FAILURE() << "not a refusal: " << e.what();
    }
    slowest = std::max(slowest, seconds_used() - start);
    EXPECT_LT(seconds_used() - start, kMaxSeconds);
  }
  std::cout << read << " read, " << refused << " refused, of these HDF5 died on " << hdf5_died
            << "; the slowest took " << slowest << " s\n";
  if (alone == kAll && count >= 100) {
    EXPECT_GT(read, count / 20) << "some damage does not matter";
    EXPECT_GT(refused, count / 4);
  }
}

TEST(TraceMutations, AreReadOrRefused) {
  try_damage(good_traces());
}

TEST(CachesMutations, AreReadOrRefused) {
  try_damage(every_good_caches());
}

}  // namespace
}  // namespace kvbench::test_trace_mutations
