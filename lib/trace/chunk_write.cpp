// Why not HDF5's own filters: they run in one thread. The bytes are the same format.
#include "trace/chunk_write.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "core/float16.hpp"
#include "trace/filters.hpp"

namespace kvbench::h5 {

namespace {

Bytes shuffled(const Bytes& in, std::size_t width) {
  const std::size_t elements = in.size() / width;
  Bytes out(in.size());
  for (std::size_t b = 0; b < width; ++b) {
    for (std::size_t i = 0; i < elements; ++i) {
      out[b * elements + i] = in[i * width + b];
    }
  }
  return out;
}

Bytes deflated(const Bytes& in, int level) {
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
      libdeflate_alloc_compressor(level), libdeflate_free_compressor);
  if (compressor == nullptr) {
    throw std::bad_alloc();
  }
  Bytes out(libdeflate_zlib_compress_bound(compressor.get(), in.size()));
  out.resize(
      libdeflate_zlib_compress(compressor.get(), in.data(), in.size(), out.data(), out.size()));
  return out;
}

Bytes encode_chunk(MatrixView rows, Index chunk_rows, DType type, int gzip_level) {
  const auto width = static_cast<std::size_t>(bytes_per_element(type));
  Bytes plain = stored_elements(rows.data, rows.rows * rows.cols, type);
  plain.resize(static_cast<std::size_t>(chunk_rows * rows.cols) * width);
  Bytes out = gzip_level == 0 ? std::move(plain) : deflated(shuffled(plain, width), gzip_level);
  const std::uint32_t checksum = fletcher32(out);
  for (std::size_t b = 0; b < kChecksumBytes; ++b) {
    out.push_back(static_cast<std::uint8_t>(checksum >> 8 * b));
  }
  return out;
}

}  // namespace

Bytes stored_elements(const float* x, Index count, DType type) {
  if (count == 0) {
    return {};  // no addresses to copy between
  }
  Bytes out(static_cast<std::size_t>(count * bytes_per_element(type)));
  if (type == DType::float32) {
    std::memcpy(out.data(), x, out.size());
    return out;
  }
  std::vector<std::uint16_t> narrow(count);
  if (type == DType::float16) {
    float_to_half(x, narrow.data(), count);
  } else {
    float_to_bfloat16(x, narrow.data(), count);
  }
  std::memcpy(out.data(), narrow.data(), out.size());
  return out;
}

std::vector<Bytes> encode_head(MatrixView head, Index chunk_rows, DType type, int gzip_level) {
  const Index count = (head.rows + chunk_rows - 1) / chunk_rows;
  std::vector<Bytes> chunks(count);
  std::atomic<bool> short_of_memory = false;  // no exception may leave a parallel region
#pragma omp parallel for schedule(dynamic)
  for (Index i = 0; i < count; ++i) {
    try {
      const Range rows{i * chunk_rows, std::min(head.rows, (i + 1) * chunk_rows)};
      chunks[i] = encode_chunk(head.slice(rows), chunk_rows, type, gzip_level);
    } catch (const std::bad_alloc&) {
      short_of_memory = true;
    }
  }
  if (short_of_memory) {
    throw std::bad_alloc();
  }
  return chunks;
}

}  // namespace kvbench::h5
