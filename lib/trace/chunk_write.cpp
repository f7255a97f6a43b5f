// Why not HDF5's own filters: they run in one thread. The bytes are the same format.
#include "trace/chunk_write.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "core/float16.hpp"

namespace kvbench::h5 {

namespace {

using Bytes = std::vector<std::uint8_t>;

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
  const Index used = rows.rows * rows.cols;
  Bytes plain(static_cast<std::size_t>(chunk_rows * rows.cols) * width, 0);
  if (type == DType::float32) {
    std::memcpy(plain.data(), rows.data, static_cast<std::size_t>(used) * width);
  } else {
    std::vector<std::uint16_t> narrow(static_cast<std::size_t>(used));
    if (type == DType::float16) {
      float_to_half(rows.data, narrow.data(), used);
    } else {
      float_to_bfloat16(rows.data, narrow.data(), used);
    }
    std::memcpy(plain.data(), narrow.data(), narrow.size() * width);
  }
  return gzip_level == 0 ? plain : deflated(shuffled(plain, width), gzip_level);
}

}  // namespace

Handle file_type(DType type) {
  switch (type) {
    case DType::bfloat16: return {H5Tcopy(H5T_STD_U16LE), H5Tclose};
    case DType::float32: return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case DType::float16: break;
  }
  // HDF5 1.10 has no name for half; this is the type that h5py gives numpy's float16.
  Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
  H5Tset_size(half.get(), 2);
  H5Tset_ebias(half.get(), 15);
  return half;
}

std::vector<Bytes> encode_head(MatrixView head, Index chunk_rows, DType type, int gzip_level) {
  const Index count = (head.rows + chunk_rows - 1) / chunk_rows;
  std::vector<Bytes> chunks(static_cast<std::size_t>(count));
  std::atomic<bool> short_of_memory = false;  // no exception may leave a parallel region
#pragma omp parallel for schedule(dynamic)
  for (Index i = 0; i < count; ++i) {
    try {
      const Range rows{i * chunk_rows, std::min(head.rows, (i + 1) * chunk_rows)};
      chunks[static_cast<std::size_t>(i)] =
          encode_chunk(head.slice(rows), chunk_rows, type, gzip_level);
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
