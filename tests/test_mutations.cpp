// Seeded damage of every kind, to traces and caches files: bits, bytes, splices and truncations of
// the file, and attributes, links and shapes that HDF5 itself wrote wrong. Each file is opened and
// all of it read, or it is refused, in bounded time and memory; where values have checksums, what
// is read is what was written. KVBENCH_MUTATIONS: how many traces and how many caches files (1000
// each); KVBENCH_MUTATION: this one alone.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "caches_files.hpp"
#include "core/error.hpp"
#include "damage.hpp"
#include "extra_traces.hpp"
#include "files.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"
#include "trace/writer.hpp"
#include "trace_files.hpp"

namespace kvbench::test_mutations {
namespace {

using namespace testing_replay;
using namespace testing_traces;

constexpr rlim_t kMaxMemory = rlim_t{1} << 30;

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

using Numbers = std::vector<float>;

void add(const Matrix& m, Numbers& out) {
  out.insert(out.end(), m.data(), m.data() + m.rows() * m.cols());
}

// Opens a file and reads all of it.
Numbers read_trace(const std::string& path) {
  const TraceReader reader(path, Require::keys);
  Numbers out;
  validate_values(reader, [&](const HeadVisit& at, const KvHead& head) {
    add(head.k, out);
    add(head.v, out);
    for (const Matrix& q : head.q) {
      add(q, out);
    }
    add(reader.read_o_proj(at.prompt, at.layer, at.kv_head), out);
    if (at.kv_head == 0) {
      const std::vector<float> norms = reader.read_residual_norm(at.prompt, at.layer);
      out.insert(out.end(), norms.begin(), norms.end());
      if (const auto rope = reader.read_rope(at.prompt, at.layer)) {
        add(rope->cos, out);
        add(rope->sin, out);
      }
    }
  });
  for (std::size_t p = 0; p < reader.meta().prompts.size(); ++p) {
    for (const std::int32_t id : reader.read_token_ids(p)) {
      out.push_back(static_cast<float>(id));
    }
  }
  return out;
}

Numbers read_caches(const std::string& path) {
  const CacheReader reader(path);
  Numbers out;
  for (std::size_t g = 0; g < reader.groups().size(); ++g) {
    if (const auto c = reader.read(g, testing_caches::kPlace, testing_caches::kShape)) {
      add(c->k, out);
      add(c->v, out);
    }
  }
  return out;
}

struct Good {
  std::string bytes;
  Numbers (*read)(const std::string&);
  std::vector<std::string> objects;  // groups and datasets; none: only bytes are damaged
  std::vector<std::string> attributes;
  bool checked = false;  // all numbers have checksums
};

Good good_trace(bool newest, const Storage& storage, DType type) {
  const std::string path = planted_trace("good.h5", type, small_shape(), storage, newest);
  alter(path, "/", [](hid_t root) {
    // Strings of variable length, as h5py writes them, lie in a heap of their own.
    put_variable_string(root, "model", std::string(60, 'm'));
    put_variable_string(root, "source", "s");
    const Id rope = H5Gcreate2(root, "rope", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    put_variable_string(rope, "layout", "half");
    for (const char* name : {"cos", "sin"}) {
      put_values(rope, name, {560, 4}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
                 std::vector<float>(560 * 4, 0.5F), true);
    }
  });
  alter(path, "/prompts/a/layers/0", [&](hid_t layer) {
    put_double(layer, "scale", 0.5);
    const std::array<std::uint8_t, 1> heads{1};
    put_number(layer, "retrieval_heads", H5T_NATIVE_UINT8, heads.data(), 1);
    const std::array<float, 2> sinks{0.5F, -1.0F};
    put_number(layer, "sink_logit", H5T_NATIVE_FLOAT, sinks.data(), 2);
    const std::int64_t window = 20;
    put_number(layer, "window", H5T_NATIVE_INT64, &window, 1);
    put_values(layer, "residual_norm", {10}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
               std::vector<float>(10, 1.5F));
    put_values(layer, "o_proj", {6, 8}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT,
               std::vector<float>(48, 0.25F));
    SegmentParts segment;
    segment.residual_norm.assign(5, 2.0F);
    segment.prefix = segment.last = 30;
    segment.first = 0;
    put_segment(layer, "repeat", 0, small_shape(), type, segment, storage);
    put_segment(layer, "repeat", 1, small_shape(), type, {});
    put_scores(layer, "gate", 1, 40, std::vector<float>(40, -1.0F), 30);
  });
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
    put_int(entry, "aux_bytes", 20);
    put_variable_string(entry, "diag", "diagnostics=all fine");
    testing_caches::put_planted(entry, "k_den", 3, testing_caches::kD, style);
    testing_caches::put_reals(entry, "log_weight_den", {3}, {0.0, 0.5, -1.0}, style);
  });
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

Matrix random_matrix(Random& random, Index rows, Index cols) {
  Matrix out(rows, cols);
  for (Index i = 0; i < rows * cols; ++i) {
    out.data()[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 256.0F;
  }
  return out;
}

// Of kvbench's own writer: chunks with checksums, and SHA-256 of all elements.
Good written_trace(DType type, int gzip_level) {
  const std::string path = temporary_path("written.h5");
  Random random(5);
  TraceHeader header;
  header.dtype = type;
  header.gzip_level = gzip_level;
  TraceWriter writer(path, header);
  std::vector<std::int32_t> ids(40);
  std::ranges::generate(ids, [&] { return static_cast<std::int32_t>(random() % 1000); });
  writer.begin_prompt("a", 40, "", ids);
  LayerSpec layer;
  layer.layer = 3;
  layer.q_heads = 4;
  layer.kv_heads = 2;
  layer.nq = 10;
  layer.d = layer.dv = 8;
  writer.begin_layer(layer);
  for (Index h = 0; h < 4; ++h) {
    writer.write_q(h, random_matrix(random, 10, 8).view());
  }
  for (Index h = 0; h < 2; ++h) {
    writer.write_k(h, random_matrix(random, 40, 8).view());
    writer.write_v(h, random_matrix(random, 40, 8).view());
  }
  writer.write_o_proj(random_matrix(random, 6, 32).view());
  std::vector<float> norms(10);
  std::ranges::generate(norms, [&] { return static_cast<float>(1 + random() % 100); });
  writer.write_residual_norm(norms);
  RopeTables tables;
  tables.cos = random_matrix(random, 560, 4);
  tables.sin = random_matrix(random, 560, 4);
  writer.write_rope(tables);
  writer.close();
  return {read_bytes(path), read_trace, {}, {}, true};
}

std::vector<Good> good_traces() {
  Storage plain;
  const Storage packed = packed_storage();
  Storage summed = packed;
  summed.settings.emplace_back(checksum);
  Storage compact;
  compact.layout = Storage::Layout::compact;
  return {good_trace(false, packed, DType::float16),
          good_trace(true, packed, DType::float32),
          good_trace(false, plain, DType::bfloat16),
          good_trace(true, summed, DType::float16),
          good_trace(false, compact, DType::bfloat16),
          written_trace(DType::float16, 4),
          written_trace(DType::float32, 0),
          written_trace(DType::bfloat16, 1)};
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
    case 0: put_variable_string(object, name.c_str(), "x\ny"); break;
    case 1: put_string(object, name.c_str(), std::string(3000, 'y')); break;
    case 2: {
      const Id compound = H5Tcreate(H5T_COMPOUND, 8);
      H5Tinsert(compound, "a", 0, H5T_NATIVE_INT64);
      put_number(object, name.c_str(), compound, zeros.data(), count);
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
  const Id root = H5Gopen2(file, "/", H5P_DEFAULT);
  const Id kept = H5Oopen(file, target.c_str(), H5P_DEFAULT);
  H5Ldelete(root, at.c_str(), H5P_DEFAULT);
  switch (below(random, 4)) {
    case 0: H5Lcreate_soft(target.c_str(), root, at.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
    case 1:
      H5Lcreate_external("/dev/zero", target.c_str(), root, at.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      break;
    default: H5Olink(kept, root, at.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
  }
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
  const Id space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
  const Id plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(plist, static_cast<int>(chunk.size()), chunk.data());
  H5Pset_deflate(plist, 1);
  H5Ldelete(file, name.c_str(), H5P_DEFAULT);
  const Id data =
      H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
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
  std::vector<Numbers> whole;
  for (const Good& file : good) {
    write_bytes(path, file.bytes);
    whole.push_back(file.read(path));
    // Wherever a file ends.
    for (std::size_t i = 0; i < 25; ++i) {
      write_bytes(path, file.bytes.substr(0, file.bytes.size() * i / 25));
      EXPECT_THROW(file.read(path), InputError) << "cut at " << i << " 25ths";
    }
  }
  std::uint64_t same = 0;
  std::uint64_t other = 0;
  std::uint64_t refused = 0;
  std::uint64_t hdf5_died = 0;
  double slowest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (alone != kAll && i != alone) {
      continue;
    }
    Random random(i);
    const std::size_t number = i % good.size();
    const Good& from = good[number];
    std::string bytes = from.bytes;
    write_bytes(path, bytes);
    const std::size_t kind = below(random, 8);
    const bool objects = kind < 2 && !from.objects.empty();
    if (objects) {
      damage_objects(random, path, from);
      bytes = read_bytes(path);
    }
    if (!objects || kind > 0) {
      damage_bytes(random, bytes);
    }
    write_bytes(path, bytes);
    SCOPED_TRACE("KVBENCH_MUTATION=" + std::to_string(i));
    const double start = seconds_used();
    try {
      const MemoryLimit limit;
      const Numbers got = from.read(path);
      // By bits: a NaN is refused, and zeros of another sign are other numbers.
      const bool equal =
          got.size() == whole[number].size() &&
          std::memcmp(got.data(), whole[number].data(), got.size() * sizeof(float)) == 0;
      ++(equal ? same : other);
      EXPECT_TRUE(equal || !from.checked) << "values changed silently";
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
  std::cout << same << " read alike, " << other << " read otherwise, " << refused
            << " refused, of these HDF5 died on " << hdf5_died << "; the slowest took " << slowest
            << " s\n";
  if (alone == kAll && count >= 100) {
    EXPECT_GT(same, count / 20) << "some damage does not matter";
    EXPECT_GE(other, count / 500) << "without checksums damage goes unseen";
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
}  // namespace kvbench::test_mutations
