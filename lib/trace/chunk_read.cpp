// Why not H5Dread for the common layout: its half-to-float conversion runs at tens of MB/s, and its
// filters run in one thread. Raw chunks, libdeflate and F16C run at memory speed.
#include "trace/chunk_read.hpp"

#include <libdeflate.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/float16.hpp"

namespace kvbench::h5 {

namespace {

static_assert(std::endian::native == std::endian::little, "stored bits are used as they are");

// Compressed bytes held at a time; the bound on memory beside the heads themselves.
constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;
constexpr std::size_t kBatchJobs = 4096;  // tiny or absent chunks cost memory too
// All threads' inflated chunks together.
constexpr std::uint64_t kScratchBytes = std::uint64_t{256} << 20;
// A thread's inflated chunk is freed after use above this size.
constexpr std::size_t kKeptScratch = std::size_t{4} << 20;
// Less inflated data than this per thread is not worth waking one.
constexpr std::uint64_t kThreadBytes = std::uint64_t{64} << 10;
// Deflate's best ratio is 1032; less than this many stored bytes cannot inflate to a chunk.
constexpr std::uint64_t kDeflateRatio = 1100;
constexpr std::uint64_t kDeflateSlack = 64;

// One chunk that intersects one head, its stored bytes read but not decoded.
struct Job {
  const HeadRead* read;
  std::array<hsize_t, 3> offset;
  std::uint32_t mask = 0;
  bool allocated = false;
  std::size_t stored_at = 0;  // in ReadBuffers::stored
  std::size_t stored_size = 0;
  std::string fault = {};  // what went wrong while decoding
};

std::string at(const Job& job) {
  return fmt::format("chunk at [{}, {}, {}]", job.offset[0], job.offset[1], job.offset[2]);
}

std::uint64_t chunk_bytes(const Tensor& t) {
  return static_cast<std::uint64_t>(t.chunk.elements * bytes_per_element(t.dtype));
}

// Two byte planes, `stride` apart, back to 16-bit elements.
void unshuffle(const std::uint8_t* plane, Index stride, std::uint16_t* out, Index count) {
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    out[i] = static_cast<std::uint16_t>(plane[i] | plane[stride + i] << 8);
  }
}

// Four byte planes back to float32. By halves, which the compiler vectorises best.
void unshuffle(const std::uint8_t* plane, Index stride, float* out, Index count) {
  const std::uint8_t* upper = plane + 2 * stride;
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    const auto low = static_cast<std::uint16_t>(plane[i] | plane[stride + i] << 8);
    const auto high = static_cast<std::uint16_t>(upper[i] | upper[stride + i] << 8);
    out[i] = std::bit_cast<float>(std::uint32_t{low} | std::uint32_t{high} << 16);
  }
}

void widen(DType type, const std::uint16_t* in, float* out, Index count) {
  if (type == DType::float16) {
    half_to_float(in, out, count);
  } else {
    bfloat16_to_float(in, out, count);
  }
}

// Elements [first, first + count) of an inflated chunk to float32.
void emit(const Tensor& t, const std::uint8_t* plain, bool shuffled, Index first, Index count,
          float* out) {
  const Index all = t.chunk.elements;
  if (t.dtype == DType::float32) {
    if (shuffled) {
      unshuffle(plain + first, all, out, count);
    } else {
      std::memcpy(out, plain + first * 4, static_cast<std::size_t>(count) * 4);
    }
    return;
  }
  constexpr Index kBlock = 4096;  // stays in the first-level cache
  std::array<std::uint16_t, kBlock> block;
  for (Index done = 0; done < count; done += kBlock) {
    const Index part = std::min(kBlock, count - done);
    const std::uint8_t* from = plain + first + done;
    if (shuffled) {
      unshuffle(from, all, block.data(), part);
    } else {
      std::memcpy(block.data(), plain + (first + done) * 2, static_cast<std::size_t>(part) * 2);
    }
    widen(t.dtype, block.data(), out + done, part);
  }
}

float fill_value(const Tensor& t) {
  const auto narrow = static_cast<std::uint16_t>(t.chunk.fill);
  float wide = std::bit_cast<float>(t.chunk.fill);
  if (t.dtype != DType::float32) {
    widen(t.dtype, &narrow, &wide, 1);
  }
  return wide;
}

// Visits the runs that a chunk shares with its head: visit(element in the chunk, index in the
// head's [rows, width], count). Whole rows that lie together in both are one run.
template <typename Visit>
void for_each_run(const Job& job, Visit visit) {
  const Tensor& t = *job.read->tensor;
  const auto& dims = t.chunk.dims;
  const auto row0 = static_cast<Index>(job.offset[1]);
  const auto col0 = static_cast<Index>(job.offset[2]);
  const auto chunk_rows = static_cast<Index>(dims[1]);
  const auto chunk_cols = static_cast<Index>(dims[2]);
  const Index rows = std::min(chunk_rows, t.rows() - row0);
  const Index cols = std::min(chunk_cols, t.width() - col0);
  const Index plane = job.read->head - static_cast<Index>(job.offset[0]);
  const Index first = plane * chunk_rows * chunk_cols;
  if (chunk_cols == t.width()) {
    visit(first, row0 * t.width(), rows * cols);
    return;
  }
  for (Index r = 0; r < rows; ++r) {
    visit(first + r * chunk_cols, (row0 + r) * t.width() + col0, cols);
  }
}

libdeflate_decompressor* decompressor() {
  struct Free {
    void operator()(libdeflate_decompressor* d) const { libdeflate_free_decompressor(d); }
  };
  thread_local const std::unique_ptr<libdeflate_decompressor, Free> mine(
      libdeflate_alloc_decompressor());
  if (mine == nullptr) {
    throw std::bad_alloc();
  }
  return mine.get();
}

// Decodes one chunk into its head. Sets job.fault instead of throwing: no exception may leave a
// parallel region.
void decode(Job& job, const std::vector<std::uint8_t>& stored,
            std::vector<std::uint8_t>& scratch) try {
  const Tensor& t = *job.read->tensor;
  float* out = job.read->out;
  if (!job.allocated) {
    const float fill = fill_value(t);
    for_each_run(job, [&](Index, Index to, Index count) { std::fill_n(out + to, count, fill); });
    return;
  }
  const std::uint64_t bytes = chunk_bytes(t);
  const std::uint8_t* packed = stored.data() + job.stored_at;
  const std::uint8_t* plain = packed;
  if (t.chunk.deflate_bit != 0 && (job.mask & t.chunk.deflate_bit) == 0) {
    if (bytes > job.stored_size * kDeflateRatio + kDeflateSlack) {
      job.fault = fmt::format("{} stored bytes cannot inflate to {}", job.stored_size, bytes);
      return;
    }
    const auto size = static_cast<std::size_t>(bytes);
    if (scratch.size() < size) {
      scratch.resize(size);
    }
    std::size_t got = 0;
    const libdeflate_result result = libdeflate_zlib_decompress(
        decompressor(), packed, job.stored_size, scratch.data(), size, &got);
    if (result != LIBDEFLATE_SUCCESS || got != size) {
      job.fault = fmt::format("gzip data are corrupt, expected {} bytes after inflating", bytes);
      return;
    }
    plain = scratch.data();
  } else if (job.stored_size != bytes) {
    job.fault = fmt::format("holds {} bytes, expected {}", job.stored_size, bytes);
    return;
  }
  const bool shuffled = t.chunk.shuffle_bit != 0 && (job.mask & t.chunk.shuffle_bit) == 0;
  for_each_run(job, [&](Index from, Index to, Index count) {
    emit(t, plain, shuffled, from, count, out + to);
  });
} catch (const std::exception& e) {
  job.fault = e.what();
}

// Bytes that a chunk has in the file, 0 if it was never written.
hsize_t stored_bytes(const Job& job) {
  const Tensor& t = *job.read->tensor;
  hsize_t size = 0;
  if (H5Dget_chunk_storage_size(t, job.offset.data(), &size) >= 0) {
    return size;
  }
  // HDF5 1.10 calls an absent chunk an error too. The slower query, linear in the number of chunks,
  // tells it from an index that cannot be read.
  unsigned mask = 0;
  haddr_t address = HADDR_UNDEF;
  if (H5Dget_chunk_info_by_coord(t, job.offset.data(), &mask, &address, &size) < 0 ||
      address != HADDR_UNDEF) {
    t.where.refuse("{} cannot be found ({})", at(job), last_error());
  }
  return 0;
}

// Appends the stored bytes of a chunk to `stored`.
void fetch(Job& job, std::vector<std::uint8_t>& stored) {
  const Tensor& t = *job.read->tensor;
  const hsize_t size = stored_bytes(job);
  if (size == 0) {
    return;
  }
  if (size > t.file_bytes) {
    t.where.refuse("{} has {} stored bytes, expected at most the file's {}", at(job), size,
                   t.file_bytes);
  }
  job.allocated = true;
  job.stored_at = stored.size();
  job.stored_size = static_cast<std::size_t>(size);
  stored.resize(job.stored_at + job.stored_size);
  if (H5Dread_chunk(t, H5P_DEFAULT, job.offset.data(), &job.mask, stored.data() + job.stored_at) <
      0) {
    t.where.refuse("{} cannot be read ({})", at(job), last_error());
  }
}

void decode_batch(std::vector<Job>& batch, std::vector<std::uint8_t>& stored) {
  std::uint64_t largest = 1;
  std::uint64_t all = 0;
  for (const Job& job : batch) {
    const std::uint64_t bytes = chunk_bytes(*job.read->tensor);
    largest = std::max(largest, bytes);
    all += bytes;
  }
  const auto useful =
      std::min<std::uint64_t>({kScratchBytes / largest, batch.size(), all / kThreadBytes + 1});
  const int threads = std::clamp(static_cast<int>(useful), 1, omp_get_max_threads());
#pragma omp parallel num_threads(threads)
  {
    // Kept by each thread unless it is large.
    thread_local std::vector<std::uint8_t> scratch;
#pragma omp for schedule(dynamic)
    for (std::size_t i = 0; i < batch.size(); ++i) {
      decode(batch[i], stored, scratch);
    }
    if (scratch.size() > kKeptScratch) {
      scratch = {};
    }
  }
  for (const Job& job : batch) {
    if (!job.fault.empty()) {
      job.read->tensor->where.refuse("{}: {}", at(job), job.fault);
    }
  }
  batch.clear();
  stored.clear();
}

}  // namespace

void read_raw(std::span<const HeadRead> reads, ReadBuffers& buffers) {
  std::vector<std::uint8_t>& stored = buffers.stored;
  stored.clear();
  std::vector<Job> batch;
  for (const HeadRead& read : reads) {
    const Tensor& t = *read.tensor;
    const auto& dims = t.chunk.dims;
    const hsize_t head = static_cast<hsize_t>(read.head) / dims[0] * dims[0];
    for (hsize_t row = 0; row < static_cast<hsize_t>(t.rows()); row += dims[1]) {
      for (hsize_t col = 0; col < static_cast<hsize_t>(t.width()); col += dims[2]) {
        fetch(batch.emplace_back(Job{&read, {head, row, col}}), stored);
        if (stored.size() >= kBatchBytes || batch.size() >= kBatchJobs) {
          decode_batch(batch, stored);
        }
      }
    }
  }
  decode_batch(batch, stored);
}

void read_block(const Tensor& t, const std::string& what, const std::vector<Index>& start,
                const std::vector<Index>& count, float* out, ReadBuffers& buffers) {
  const Handle memory = make_space(count);
  const Index elements = H5Sget_simple_extent_npoints(memory);
  const std::vector<hsize_t> from(start.begin(), start.end());
  const std::vector<hsize_t> sizes(count.begin(), count.end());
  const Handle space(H5Dget_space(t), H5Sclose);
  // HDF5 may turn bytes around but not convert: its conversion of halves is slow.
  const Handle type = file_type(t.dtype);
  void* to = out;
  if (t.dtype != DType::float32) {
    // Zeroed, because HDF5 leaves elements alone that have neither storage nor a fill value.
    buffers.narrow.assign(elements, 0);
    to = buffers.narrow.data();
  }
  if (H5Sselect_hyperslab(space, H5S_SELECT_SET, from.data(), nullptr, sizes.data(), nullptr) < 0 ||
      H5Dread(t, type, memory, space, H5P_DEFAULT, to) < 0) {
    t.where.refuse("{} cannot be read ({})", what, last_error());
  }
  if (t.dtype != DType::float32) {
    widen(t.dtype, buffers.narrow.data(), out, elements);
  }
}

}  // namespace kvbench::h5
