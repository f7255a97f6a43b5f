// Files that are made to harm: they crash HDF5 or keep it busy, lead out of themselves, or claim
// more than they hold. Each is refused in one line, soon, and in little memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "caches_files.hpp"
#include "damage.hpp"
#include "extra_traces.hpp"
#include "files.hpp"
#include "spoiled.hpp"
#include "trace/caches.hpp"
#include "trace/canary.hpp"
#include "trace/structure.hpp"

namespace kvbench::test_trace_hostile {
namespace {

using namespace testing_traces;

constexpr const char* kLayer = "/prompts/a/layers/0";
constexpr std::array<hsize_t, 3> kDims{3, 100, 24};  // of k in planted_trace

// A trace whose layer 0 was changed.
std::string altered(const std::function<void(hid_t)>& change) {
  const std::string path = planted_trace("t.h5");
  alter(path, kLayer, change);
  return path;
}

// k as a virtual dataset whose values are those of `inside` in `file`.
std::string with_virtual_keys(const char* file, const char* inside) {
  return altered(bare_dataset("k", {kDims.begin(), kDims.end()}, -1, [=](hid_t plist) {
    const Id space = H5Screate_simple(3, kDims.data(), nullptr);
    ASSERT_GE(H5Pset_virtual(plist, space, file, inside, space), 0);
  }));
}

// Keys in chunks of one head each.
Storage head_chunks(std::vector<std::function<void(hid_t)>> settings) {
  return chunked({1, 100, 24}, std::move(settings));
}

// --------------------------------------------------------------------- out of the file and around

TEST(TraceHostile, VirtualDatasets) {
  const std::vector<std::string> says{"/layers/0/k", "virtual storage", "expected its values in"};
  expect_refusal(with_virtual_keys("missing.h5", "/k"), says);
  expect_refusal(with_virtual_keys(".", "/prompts/a/layers/0/k"), says);  // of itself
  const std::string other = planted_trace("other.h5");
  expect_refusal(with_virtual_keys(other.c_str(), "/prompts/a/layers/0/k"), says);
}

TEST(TraceHostile, ExternalStorage) {
  const std::string path =
      altered(bare_dataset("k", {kDims.begin(), kDims.end()}, -1, [](hid_t plist) {
        H5Pset_external(plist, "/etc/passwd", 0, 3 * 100 * 24 * 2);
      }));
  expect_refusal(path, {"/layers/0/k", "external storage", "expected its values in"});
}

TEST(TraceHostile, ExternalLinks) {
  const std::string other = planted_trace("other.h5");
  const std::string pipe = temporary_path("pipe");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& target : {other, pipe, std::string("missing.h5")}) {
    const std::string path = altered([&](hid_t layer) {
      H5Ldelete(layer, "k", H5P_DEFAULT);
      H5Lcreate_external(target.c_str(), "/prompts/a/layers/0/k", layer, "k", H5P_DEFAULT,
                         H5P_DEFAULT);
    });
    expect_refusal(path, {"/layers/0/k", "a link out of the file", "expected a dataset"});
  }
  // By way of a soft link, and of a whole prompt.
  const std::string path = planted_trace("t.h5");
  alter(path, "/", [&](hid_t root) {
    H5Lcreate_external(other.c_str(), "/prompts", root, "away", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/away/a", root, "/prompts/b", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refusal(path, {"/prompts/b", "soft link that leads to nothing"});
}

TEST(TraceHostile, SoftLinks) {
  const std::string path = planted_trace("t.h5");
  alter(path, "/", [](hid_t root) {
    H5Lmove(root, "/prompts/a/layers/0/k", root, "/keys", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/keys", root, "/prompts/a/layers/0/k", H5P_DEFAULT, H5P_DEFAULT);
  });
  EXPECT_EQ(TraceReader(path).read_head(0, 0, 1).k.row(5)[7],
            testing_traces::planted('k', 1, 5, 7));
  alter(path, "/", [](hid_t root) { H5Ldelete(root, "/keys", H5P_DEFAULT); });
  expect_refusal(path, {"/layers/0/k", "soft link that leads to nothing", "expected a dataset"});
  // One that leads to itself.
  alter(path, "/", [](hid_t root) {
    H5Lcreate_soft("/prompts/a/layers/0/k", root, "/keys", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_refusal(path, {"/layers/0/k", "soft link that leads to nothing"});
}

TEST(TraceHostile, GroupsThatHoldThemselves) {
  for (const char* ancestor : {"/", "/prompts", "/prompts/a", "/prompts/a/layers"}) {
    const std::string path = planted_trace("t.h5");
    alter(path, "/", [&](hid_t root) {
      H5Lcreate_hard(root, ancestor, root, "/prompts/a/layers/1", H5P_DEFAULT, H5P_DEFAULT);
    });
    expect_refusal(path, {"/layers/1/k", "missing"});
  }
}

TEST(TraceHostile, NoRegularFiles) {
  const std::string pipe = temporary_path("pipe");
  const std::string link = temporary_path("link.h5");
  std::filesystem::remove(pipe);
  std::filesystem::remove(link);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(pipe, link);
  for (const std::string& path : {pipe, link, std::string("/dev/zero")}) {
    testing_replay::expect_refusal([&] { TraceReader{path}; }, "directory or device");
    testing_replay::expect_refusal([&] { CacheReader{path}; }, "directory or device");
  }
  std::filesystem::remove(link);
  std::filesystem::create_symlink(planted_trace("t.h5"), link);
  EXPECT_EQ(TraceReader(link).meta().prompts.size(), 1U);
}

TEST(TraceHostile, CachesLeadOutOfTheFile) {
  const std::string other = testing_caches::plain_caches("other.h5");
  const std::string path = testing_caches::plain_caches("caches.h5");
  alter(path, testing_caches::kEntry, [&](hid_t entry) {
    H5Ldelete(entry, "k", H5P_DEFAULT);
    H5Lcreate_external(other.c_str(), (std::string(testing_caches::kEntry) + "/k").c_str(), entry,
                       "k", H5P_DEFAULT, H5P_DEFAULT);
  });
  const CacheReader reader(path);
  testing_replay::expect_refusal(
      [&] { reader.read(0, testing_caches::kPlace, testing_caches::kShape); },
      "/7/1/k: is a link out of the file");
}

// ----------------------------------------------------------------------------------- HDF5 itself

// Files of tests/data/hostile: bytes of a good trace were changed until HDF5 1.10.8 crashed on
// them, or ran without end.
TEST(TraceHostile, WhatHdf5DoesNotSurvive) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVBENCH_TEST_DATA_DIR "/hostile")) {
    const double before = testing_replay::seconds_used();
    // Another HDF5 may well read it.
    try {
      validate_values(TraceReader(entry.path().string()));
    } catch (const InputError& e) {
      const std::string message = e.what();
      EXPECT_EQ(message.rfind(entry.path().string(), 0), 0U) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
    EXPECT_LT(testing_replay::seconds_used() - before, testing_replay::kMaxSeconds) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(TraceHostile, AStepThatTakesTooLong) {
  const std::string path = KVBENCH_TEST_DATA_DIR "/hostile/endless-1.h5";
  try {
    const TraceReader read(path);
    GTEST_SKIP() << "this HDF5 reads " << path;
  } catch (const InputError& e) {
    const std::string message = e.what();
    if (message.find("needed more than") == std::string::npos) {
      GTEST_SKIP() << "this HDF5 ends: " << message;
    }
    EXPECT_NE(message.find("needed more than 4 s"), std::string::npos) << message;
  }
}

// A small file can hold the same layer, segment or score under many names.
TEST(TraceHostile, MoreThanATraceHas) {
  const std::string path = planted_trace("t.h5");
  alter(path, kLayer, [](hid_t layer) {
    put_segment(layer, "repeat", 0, {}, DType::float16, {});
    put_scores(layer, "gate", 3, 100, std::vector<float>(300, 1.0F), {});
  });
  alter(path, "/", [](hid_t root) {
    H5Lcreate_hard(root, "/prompts/a", root, "/prompts/b", H5P_DEFAULT, H5P_DEFAULT);
  });
  const auto read = [](h5::Limits limits) {
    return [=](const std::string& file) {
      h5::read_guarded(h5::InputFile(file, "a trace"), [&](const h5::Hdf5Object& root) {
        return h5::read_structure(root, Require::all, limits);
      });
    };
  };
  EXPECT_NO_THROW(read({2, 4})(path));
  expect_refusal(path, {"/prompts/b/layers: ", "1 layers, expected at most 0 more"}, read({1, 4}));
  expect_refusal(path, {"/b/layers/0/scores: ", "expected at most 0 more"}, read({2, 3}));
  expect_refusal(path, {"/b/layers/0/extra/repeat: ", "at most 0 more"}, read({2, 2}));
}

// ----------------------------------------------------------------------------------------- bombs

// A trace of 2 GiB of zeros, in some MB of gzip: k and v are [1, 2^21, 256].
std::string bomb() {
  constexpr hsize_t kTokens = hsize_t{1} << 21;
  const std::string path = planted_trace("bomb.h5", DType::float16, {1, 1, 2, 1, 256, 256});
  alter(path, "/prompts/a", [](hid_t prompt) {
    H5Ldelete(prompt, "token_ids", H5P_DEFAULT);
    put_int(prompt, "n_tokens", kTokens);
  });
  alter(path, kLayer, [](hid_t layer) {
    for (const char* name : {"k", "v"}) {
      H5Ldelete(layer, name, H5P_DEFAULT);
      const std::array<hsize_t, 3> dims{1, kTokens, 256};
      const std::array<hsize_t, 3> chunk{1, kTokens / 64, 256};
      const Id space = H5Screate_simple(3, dims.data(), nullptr);
      const Id plist = H5Pcreate(H5P_DATASET_CREATE);
      H5Pset_chunk(plist, 3, chunk.data());
      H5Pset_deflate(plist, 9);
      const Id half = testing_traces::make_type(DType::float16, false);
      const Id data = H5Dcreate2(layer, name, half, space, H5P_DEFAULT, plist, H5P_DEFAULT);
      // HDF5 deflates one chunk; the others get its bytes.
      const std::vector<std::uint16_t> zeros(chunk[1] * chunk[2], 0);
      const Id memory = H5Screate_simple(3, chunk.data(), nullptr);
      const std::array<hsize_t, 3> first{0, 0, 0};
      H5Sselect_hyperslab(space, H5S_SELECT_SET, first.data(), nullptr, chunk.data(), nullptr);
      EXPECT_GE(H5Dwrite(data, half, memory, space, H5P_DEFAULT, zeros.data()), 0);
      H5Dflush(data);
      hsize_t size = 0;
      ASSERT_GE(H5Dget_chunk_storage_size(data, first.data(), &size), 0);
      std::vector<std::uint8_t> stored(size);
      std::uint32_t mask = 0;
      ASSERT_GE(H5Dread_chunk(data, H5P_DEFAULT, first.data(), &mask, stored.data()), 0);
      for (hsize_t row = chunk[1]; row < kTokens; row += chunk[1]) {
        const std::array<hsize_t, 3> at{0, row, 0};
        ASSERT_GE(H5Dwrite_chunk(data, H5P_DEFAULT, 0, at.data(), size, stored.data()), 0);
      }
    }
  });
  return path;
}

TEST(TraceHostile, GzipBombCostsLittleMemory) {
  if (std::string(KVBENCH_PROGRAM).empty()) {
    GTEST_SKIP() << "no program is built";
  }
  const std::string path = bomb();
  EXPECT_LT(std::filesystem::file_size(path), std::size_t{8} << 20);
  expect_refusal(path, {"/layers/0/k", "needs 1073741824 bytes", "100 times"});
  const std::string errors = temporary_path("errors");
  rusage own{};  // a child's peak is at least its parent's, from before exec
  ASSERT_EQ(getrusage(RUSAGE_SELF, &own), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int to = open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(to, STDERR_FILENO);
    execl(KVBENCH_PROGRAM, KVBENCH_PROGRAM, "info", path.c_str(), static_cast<char*>(nullptr));
    _exit(99);
  }
  int status = 0;
  rusage used{};
  ASSERT_EQ(wait4(child, &status, 0, &used), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_LT(used.ru_maxrss, std::max(200L << 10, own.ru_maxrss + 1));  // KiB
  EXPECT_NE(testing_replay::read_bytes(errors).find(path), std::string::npos);
}

TEST(TraceHostile, ChunksBeyondTheirDataset) {
  const std::string path = planted_trace("t.h5");
  Storage storage = chunked({1, hsize_t{1} << 20, 24},
                            {gzip, [](hid_t p) { H5Pset_fill_time(p, H5D_FILL_TIME_NEVER); }});
  storage.extensible = true;
  storage.half_written = true;
  replace_dataset(path, "k", kDims, DType::float16, storage);
  expect_refusal(path, {"/k", "chunks have 50331648 bytes", "expected at most"});
}

// HDF5 gives the fill value for chunks that it does not find, and asks for no checksum.
TEST(TraceHostile, MissingChunks) {
  const std::string path = planted_trace("t.h5");
  for (const bool filtered : {false, true}) {
    Storage storage = chunked({1, 40, 24});
    storage.half_written = true;
    if (filtered) {
      storage.settings = {shuffle, gzip, checksum};
    }
    replace_dataset(path, "k", kDims, DType::float16, storage);
    expect_refusal(path, {"/k", "chunk at [1, 0, 0] is missing (6 of 9 are)"});
    // Never written at all.
    alter(path, kLayer, bare_dataset("k", {kDims.begin(), kDims.end()}, -1, [&](hid_t plist) {
            H5Pset_chunk(plist, 3, storage.chunk.data());
          }));
    expect_refusal(path, {"/k", "chunk at [0, 0, 0] is missing (9 of 9 are)"});
  }
}

template <class T>
std::string little_endian(std::initializer_list<T> numbers) {
  std::string out;
  for (const T number : numbers) {
    out.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  return out;
}

// Damage to the table of chunks, where the checksums of the chunks do not reach.
TEST(TraceHostile, DamagedTableOfChunks) {
  const std::string path = planted_trace("t.h5");
  replace_dataset(path, "k", kDims, DType::float16, head_chunks({checksum}));
  const StoredChunk first = stored_chunk(path, "/prompts/a/layers/0/k", {1, 0, 0});
  const StoredChunk second = stored_chunk(path, "/prompts/a/layers/0/k", {2, 0, 0});
  const std::string bytes = testing_replay::read_bytes(path);
  // A key of the B-tree: size, mask, offsets of each axis and of the element; then the address.
  const std::string key =
      little_endian({static_cast<std::uint32_t>(first.bytes), std::uint32_t{0}}) +
      little_endian<std::uint64_t>({1, 0, 0, 0, first.address});
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  const auto damaged = [&](std::size_t offset, const std::string& with) {
    std::string out = bytes;
    testing_replay::write_bytes(path, out.replace(at + offset, with.size(), with));
  };
  damaged(0, std::string(4, '\0'));
  expect_refusal(path, {"/k", "chunk at [1, 0, 0] is missing (1 of 3 are)"});
  damaged(4, std::string(1, '\1'));
  expect_refusal(path, {"/k", "chunk at [1, 0, 0]", "without its checksum"});
  damaged(40, little_endian({second.address}));
  expect_refusal(path,
                 {"byte " + std::to_string(second.address) + " belongs to the values of two"});
}

// Of the chunk, or of zlib's format.
TEST(TraceHostile, WrongChecksum) {
  for (const auto& set : {checksum, gzip}) {
    const std::string path = planted_trace("t.h5");
    replace_dataset(path, "k", kDims, DType::float16, head_chunks({set}));
    const StoredChunk chunk = stored_chunk(path, "/prompts/a/layers/0/k", {1, 0, 0});
    std::string bytes = testing_replay::read_bytes(path);
    bytes.at(chunk.address + chunk.bytes - 1) ^= 1;
    testing_replay::write_bytes(path, bytes);
    expect_refusal(path, {"/k", "chunk at [1, 0, 0]"});
  }
}

TEST(TraceHostile, FiltersThatAreNotRead) {
  const std::string path = planted_trace("t.h5");
  const Storage storage = head_chunks({[](hid_t p) { H5Pset_scaleoffset(p, H5Z_SO_INT, 0); }});
  EXPECT_NO_FATAL_FAILURE(replace_dataset(path, "k", kDims, DType::bfloat16, storage));
  alter(path, "/", [](hid_t root) { testing_traces::put_string(root, "dtype", "bfloat16"); });
  for (const char* name : {"q", "v"}) {
    replace_dataset(
        path, name,
        name[0] == 'q' ? std::array<hsize_t, 3>{6, 37, 24} : std::array<hsize_t, 3>{3, 100, 9},
        DType::bfloat16);
  }
  expect_refusal(path, {"/k", "filter 6", "expected none, shuffle, gzip or fletcher32"});
}

TEST(TraceHostile, FilesThatShrinkWhileTheyAreOpen) {
  const std::string path = planted_trace("t.h5");
  const TraceReader reader(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 4);
  testing_replay::expect_refusal([&] { validate_values(reader); }, "the file ends before it");
}

}  // namespace
}  // namespace kvbench::test_trace_hostile
