#include "trace/chunk_codec.hpp"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "core/float16.hpp"

namespace kvbench::h5 {

namespace {

static_assert(std::endian::native == std::endian::little, "stored bits are used as they are");

// HDF5's numbers of its filters.
constexpr std::uint32_t kDeflate = 1;
constexpr std::uint32_t kShuffle = 2;
constexpr std::uint32_t kFletcher32 = 3;

constexpr Index kHashPart = Index{1} << 14;  // elements; a copy of a head would be large
constexpr std::size_t kChecksumBytes = 4;    // little-endian, after the chunk
// Deflate's best ratio is 1032; less than this many stored bytes cannot inflate to a chunk.
constexpr std::size_t kDeflateRatio = 1032;
constexpr std::size_t kDeflateSlack = 64;

// Fletcher's checksum over 16-bit words, high byte first.
std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kBlock = 360;  // words whose sums still fit 32 bits
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  const auto fold = [](std::uint32_t sum) { return (sum & 0xffff) + (sum >> 16); };
  const std::size_t words = bytes.size() / 2;
  for (std::size_t i = 0; i < words;) {
    for (const std::size_t end = std::min(words, i + kBlock); i < end; ++i) {
      low += static_cast<std::uint32_t>(bytes[2 * i] << 8 | bytes[2 * i + 1]);
      high += low;
    }
    low = fold(low);
    high = fold(high);
  }
  if (bytes.size() % 2 != 0) {
    low += static_cast<std::uint32_t>(bytes.back() << 8);
    high += low;
    low = fold(low);
    high = fold(high);
  }
  return fold(high) << 16 | fold(low);
}

// Elements to planes of bytes. Bytes after the last whole element stay where they are, here and in
// unshuffle.
void shuffle(std::span<const std::uint8_t> in, std::size_t width, std::uint8_t* out) {
  const std::size_t elements = in.size() / width;
  for (std::size_t b = 0; b < width; ++b) {
    for (std::size_t i = 0; i < elements; ++i) {
      out[b * elements + i] = in[i * width + b];
    }
  }
}

// Planes of bytes back to elements; two and four planes in loops that the compiler vectorises.
void unshuffle(std::span<const std::uint8_t> planes, std::size_t width, std::uint8_t* out) {
  const std::size_t elements = planes.size() / width;
  const std::uint8_t* p = planes.data();
  if (width == 2) {
    auto* words = reinterpret_cast<std::uint16_t*>(out);
#pragma omp simd
    for (std::size_t i = 0; i < elements; ++i) {
      words[i] = static_cast<std::uint16_t>(p[i] | p[elements + i] << 8);
    }
  } else if (width == 4) {
    auto* words = reinterpret_cast<std::uint32_t*>(out);
    const std::uint8_t* upper = p + 2 * elements;
#pragma omp simd
    for (std::size_t i = 0; i < elements; ++i) {
      const auto low = static_cast<std::uint16_t>(p[i] | p[elements + i] << 8);
      const auto high = static_cast<std::uint16_t>(upper[i] | upper[elements + i] << 8);
      words[i] = std::uint32_t{low} | std::uint32_t{high} << 16;
    }
  } else {
    for (std::size_t b = 0; b < width; ++b) {
      for (std::size_t i = 0; i < elements; ++i) {
        out[i * width + b] = p[b * elements + i];
      }
    }
  }
  std::ranges::copy(planes.subspan(elements * width), out + elements * width);
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

void inflate(std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
  thread_local const std::unique_ptr<libdeflate_decompressor,
                                     decltype(&libdeflate_free_decompressor)>
      decompressor(libdeflate_alloc_decompressor(), libdeflate_free_decompressor);
  if (decompressor == nullptr) {
    throw std::bad_alloc();
  }
  std::size_t got = 0;
  const auto result = libdeflate_zlib_decompress(decompressor.get(), in.data(), in.size(),
                                                 out.data(), out.size(), &got);
  if (result != LIBDEFLATE_SUCCESS || got != out.size()) {
    throw std::runtime_error(
        fmt::format("gzip data are corrupt, expected {} bytes after inflating", out.size()));
  }
}

Bytes encode_chunk(MatrixView rows, Index chunk_rows, DType type, int gzip_level) {
  const auto width = static_cast<std::size_t>(bytes_per_element(type));
  Bytes out = stored_elements(rows.data, rows.rows * rows.cols, type);
  out.resize(static_cast<std::size_t>(chunk_rows * rows.cols) * width);
  if (gzip_level > 0) {
    Bytes planes(out.size());
    shuffle(out, width, planes.data());
    out = deflated(planes, gzip_level);
  }
  const std::uint32_t checksum = fletcher32(out);
  for (std::size_t b = 0; b < kChecksumBytes; ++b) {
    out.push_back(static_cast<std::uint8_t>(checksum >> 8 * b));
  }
  return out;
}

template <class From, class To>
void from_number(const std::uint8_t* from, Index count, void* to) {
  for (Index i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, from + i * static_cast<Index>(sizeof x), sizeof x);
    auto y = static_cast<To>(x);  // NOLINT(bugprone-signed-char-misuse): int8 is a number here
    if constexpr (std::is_same_v<From, std::uint64_t>) {
      y = static_cast<To>(std::min<From>(x, std::numeric_limits<To>::max()));
    }
    std::memcpy(static_cast<std::uint8_t*>(to) + i * static_cast<Index>(sizeof y), &y, sizeof y);
  }
}

}  // namespace

Bytes stored_elements(const float* x, Index count, DType type) {
  Bytes out(static_cast<std::size_t>(count * bytes_per_element(type)));
  auto* narrow = reinterpret_cast<std::uint16_t*>(out.data());
  if (count == 0) {
    return out;  // no addresses to copy between
  }
  switch (type) {
    case DType::float16: float_to_half(x, narrow, count); break;
    case DType::bfloat16: float_to_bfloat16(x, narrow, count); break;
    case DType::float32: std::memcpy(out.data(), x, out.size()); break;
  }
  return out;
}

void ElementHash::add(const float* x, Index count) {
  for (Index done = 0; done < count; done += kHashPart) {
    const Bytes part = stored_elements(x + done, std::min(kHashPart, count - done), type_);
    hash_.add({reinterpret_cast<const char*>(part.data()), part.size()});
  }
}

void ElementHash::add_integers(std::span<const std::int64_t> x, std::size_t width) {
  for (const std::int64_t value : x) {
    hash_.add({reinterpret_cast<const char*>(&value), std::min(width, sizeof value)});
  }
}

std::vector<Bytes> encode_head(MatrixView head, Index chunk_rows, DType type, int gzip_level) {
  const Index count = (head.rows + chunk_rows - 1) / chunk_rows;
  std::vector<Bytes> chunks(count);
  std::atomic<bool> out_of_memory = false;  // no exception may leave a parallel region
#pragma omp parallel for schedule(dynamic)
  for (Index i = 0; i < count; ++i) {
    try {
      const Range rows{i * chunk_rows, std::min(head.rows, (i + 1) * chunk_rows)};
      chunks[i] = encode_chunk(head.slice(rows), chunk_rows, type, gzip_level);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  }
  if (out_of_memory) {
    throw std::bad_alloc();
  }
  return chunks;
}

bool can_undo(const Filter& f) {
  return f.id == kDeflate || f.id == kFletcher32 || (f.id == kShuffle && f.value > 0);
}

std::span<std::uint8_t> Scratch::reserve(std::size_t size) {
  if (stored.size() < size) {
    stored.resize(size);
  }
  return {stored.data(), size};
}

std::span<std::uint8_t> undo_filters(const Dataset& d, std::uint32_t mask, std::size_t size,
                                     std::size_t chunk_bytes, Scratch& scratch) {
  const auto applied = [&](std::size_t i) { return i >= 32 || (mask >> i & 1U) == 0; };
  // The bytes so far are the first `size` of scratch.stored.
  for (std::size_t i = d.filters.size(); i-- > 0;) {
    const Filter& f = d.filters[i];
    if (f.id == kFletcher32) {
      if (!applied(i)) {  // HDF5 skips a filter that fails, and this one cannot
        throw std::runtime_error("is marked as one without its checksum (fletcher32), expected it");
      }
      if (size < kChecksumBytes) {
        throw std::runtime_error(
            fmt::format("holds {} bytes, expected a checksum after them", size));
      }
      size -= kChecksumBytes;
      std::uint32_t expected = 0;
      std::memcpy(&expected, &scratch.stored[size], kChecksumBytes);
      if (fletcher32({scratch.stored.data(), size}) != expected) {
        throw std::runtime_error("data do not match their checksum (fletcher32)");
      }
      continue;
    }
    if (!applied(i)) {
      continue;
    }
    const std::span<const std::uint8_t> from(scratch.stored.data(), size);
    std::swap(scratch.stored, scratch.other);  // moves no bytes
    if (f.id == kDeflate) {
      // The chunk, with a checksum where that was appended first.
      size = chunk_bytes;
      for (std::size_t j = 0; j < i; ++j) {
        size += d.filters[j].id == kFletcher32 && applied(j) ? kChecksumBytes : 0;
      }
      if (size > from.size() * kDeflateRatio + kDeflateSlack) {
        throw std::runtime_error(
            fmt::format("{} stored bytes cannot inflate to {}", from.size(), size));
      }
      inflate(from, scratch.reserve(size));
    } else {
      unshuffle(from, f.value, scratch.reserve(size).data());
    }
  }
  if (size != chunk_bytes) {
    throw std::runtime_error(fmt::format("holds {} bytes, expected {}", size, chunk_bytes));
  }
  return {scratch.stored.data(), size};
}

Convert real_converter(const Element& e, DType type) {
  if (type == DType::bfloat16) {
    return [](const std::uint8_t* from, Index count, void* to) {
      bfloat16_to_float(reinterpret_cast<const std::uint16_t*>(from), static_cast<float*>(to),
                        count);
    };
  }
  switch (e.bytes) {
    case 2:
      return [](const std::uint8_t* from, Index count, void* to) {
        half_to_float(reinterpret_cast<const std::uint16_t*>(from), static_cast<float*>(to), count);
      };
    case 4:
      return [](const std::uint8_t* from, Index count, void* to) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      };
    default: return from_number<double, float>;
  }
}

Convert integer_converter(const Element& e) {
  const bool is_unsigned = e.kind == Element::Kind::unsigned_integer;
  using To = std::int64_t;
  switch (e.bytes) {
    case 1: return is_unsigned ? from_number<std::uint8_t, To> : from_number<std::int8_t, To>;
    case 2: return is_unsigned ? from_number<std::uint16_t, To> : from_number<std::int16_t, To>;
    case 4: return is_unsigned ? from_number<std::uint32_t, To> : from_number<std::int32_t, To>;
    default: return is_unsigned ? from_number<std::uint64_t, To> : from_number<std::int64_t, To>;
  }
}

void swap_bytes(std::span<std::uint8_t> elements, std::size_t width) {
  for (auto at = elements.begin(); at != elements.end(); at += static_cast<std::ptrdiff_t>(width)) {
    std::reverse(at, at + static_cast<std::ptrdiff_t>(width));
  }
}

}  // namespace kvbench::h5
