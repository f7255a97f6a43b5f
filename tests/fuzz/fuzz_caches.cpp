// Fuzz target: what the process that surveys a caches file may answer, and the bytes of the file,
// to CacheReader. The input: four bytes with the answer's length, the answer, the file. Any of it
// gives entries that hold what docs/trace_format.md says, or an error of one line; no fork.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "input.hpp"
#include "trace/caches.hpp"
#include "trace/input_file.hpp"
#include "trace/survey_data.hpp"

namespace {

using namespace kvbench;

constexpr std::size_t kSignature = 8;  // of HDF5, without which no file is opened

// A file in memory that is made anew for each input.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("caches", MFD_CLOEXEC)) {
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  const std::string& hold(std::span<const std::uint8_t> bytes) const {
    static constexpr char kHdf5[] = "\x89HDF\r\n\x1a\n";
    const std::size_t rest = std::max(bytes.size(), kSignature) - kSignature;
    const bool whole =
        ::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, kHdf5, kSignature, 0) > 0 &&
        (rest == 0 || ::pwrite(descriptor_, bytes.data() + kSignature, rest, kSignature) > 0);
    if (!whole) {
      std::abort();
    }
    return path_;
  }

 private:
  int descriptor_;
  std::string path_;
};

void expect(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void check(const HeadCache& cache, const CacheReader::Shape& shape) {
  if (cache.absent()) {
    return;
  }
  const Index rows = cache.rows();
  expect(rows <= shape.largest && cache.k.cols() == shape.d);
  expect(cache.v.rows() == rows && cache.v.cols() == shape.dv);
  expect(cache.log_weight.empty() || std::ssize(cache.log_weight) == rows);
  expect(cache.token.empty() || std::ssize(cache.token) == rows);
  for (Index i = 0; i < rows * shape.d; ++i) {
    expect(std::isfinite(cache.k.data()[i]));
  }
  for (const float weight : cache.log_weight) {
    expect(weight < 89.0F);
  }
  for (const std::int32_t token : cache.token) {
    expect(token >= -1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const MemoryFile file;
  // Of cmake/KvbenchTests.cmake's file, and of what tests/caches_files.hpp plants.
  static const std::vector<CachePlace> places{{"p0", 0, 0}, {"p 0", 7, 1}};
  if (size < 4) {
    return 0;
  }
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    length |= std::size_t{bytes[i]} << 8 * i;
  }
  const std::span<const std::uint8_t> rest(bytes + 4, size - 4);
  length = std::min(length, rest.size());
  try {
    const CacheReader reader(caches::open(file.hold(rest.subspan(length))),
                             h5::decode_survey(rest.first(length)));
    for (std::size_t g = 0; g < reader.groups().size(); ++g) {
      for (const CachePlace& place : places) {
        for (const CacheReader::Shape shape : {CacheReader::Shape{256, 16, 4}, {20, 4, 3}}) {
          try {
            if (const auto cache = reader.read(g, place, shape)) {
              check(*cache, shape);
            }
          } catch (const InputError& e) {
            expect(std::string(e.what()).find('\n') == std::string::npos);
          }
        }
      }
    }
  } catch (const InputError& e) {
    expect(std::string(e.what()).find('\n') == std::string::npos);
  } catch (const std::runtime_error&) {  // the answer is not whole
  }
  return 0;
}
