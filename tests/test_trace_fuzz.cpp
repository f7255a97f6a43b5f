// Damaged files: wherever a file ends and whatever byte of its data is flipped, reading either
// works or refuses. Worth most under -fsanitize=address,undefined. Damage of all kinds:
// test_trace_mutations.cpp.
#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "files.hpp"
#include "trace/inspect.hpp"
#include "trace/reader.hpp"
#include "trace_files.hpp"

namespace kvbench::test_trace_fuzz {
namespace {

using testing_replay::read_bytes;
using testing_replay::write_bytes;
using testing_traces::packed_storage;
using testing_traces::planted_trace;
using testing_traces::small_shape;
using testing_traces::temporary_path;

// True if the file could be read whole.
bool readable(const std::string& path) {
  try {
    const TraceReader reader(path);
    validate_values(reader);
    for (std::size_t p = 0; p < reader.meta().prompts.size(); ++p) {
      reader.read_token_ids(p);
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(TraceFuzz, Truncations) {
  const std::string whole =
      read_bytes(planted_trace("whole.h5", DType::float16, small_shape(), packed_storage()));
  const std::string path = temporary_path("cut.h5");
  constexpr std::size_t kCases = 200;
  for (std::size_t i = 0; i < kCases; ++i) {
    const std::size_t length = whole.size() * i / kCases;
    write_bytes(path, whole.substr(0, length));
    EXPECT_FALSE(readable(path)) << "cut to " << length;
  }
}

TEST(TraceFuzz, FlippedBytesInChunks) {
  // The data of k alone, so that every case reaches our own decoder.
  std::mt19937 random(77);
  const std::string whole =
      read_bytes(planted_trace("whole.h5", DType::float16, small_shape(), packed_storage()));
  const std::string path = temporary_path("flipped.h5");
  haddr_t address = 0;
  hsize_t size = 0;
  testing_traces::alter(temporary_path("whole.h5"), "/prompts/a/layers/0/k", [&](hid_t k) {
    const std::array<hsize_t, 3> at{0, 16, 0};
    unsigned mask = 0;
    ASSERT_GE(H5Dget_chunk_info_by_coord(k, at.data(), &mask, &address, &size), 0);
  });
  ASSERT_GT(size, 0U);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string bytes = whole;
    bytes.at(address + random() % size) ^= static_cast<char>(1 + random() % 255);
    write_bytes(path, bytes);
    try {
      const KvHead head = TraceReader(path).read_head(0, 0, 0);
      // Some header bits of zlib's format mean nothing to inflating.
      for (Index r = 0; r < head.n(); ++r) {
        for (Index c = 0; c < head.d(); ++c) {
          ASSERT_EQ(head.k.row(r)[c], testing_traces::planted('k', 0, r, c));
        }
      }
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GE(refused, 390);  // the checksum of zlib's format finds all others
}

}  // namespace
}  // namespace kvbench::test_trace_fuzz
