#include "trace/filters.hpp"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace kvbench::h5 {

namespace {

// HDF5's numbers of its filters.
constexpr std::uint32_t kDeflate = 1;
constexpr std::uint32_t kShuffle = 2;
constexpr std::uint32_t kFletcher32 = 3;

// Deflate's best ratio is 1032; less than this many stored bytes cannot inflate to a chunk.
constexpr std::size_t kDeflateRatio = 1032;
constexpr std::size_t kDeflateSlack = 64;

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

// Planes of bytes back to elements; bytes behind the last whole element stay where they are.
void unshuffle(std::span<const std::uint8_t> planes, std::size_t width, std::uint8_t* out) {
  const std::size_t elements = planes.size() / width;
  for (std::size_t b = 0; b < width; ++b) {
    for (std::size_t i = 0; i < elements; ++i) {
      out[i * width + b] = planes[b * elements + i];
    }
  }
  const std::size_t whole = elements * width;
  std::copy(planes.begin() + static_cast<std::ptrdiff_t>(whole), planes.end(), out + whole);
}

}  // namespace

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

bool can_undo(const Filter& f) {
  return f.id == kDeflate || f.id == kFletcher32 || (f.id == kShuffle && f.value > 0);
}

Plain undo_filters(const Dataset& d, std::uint32_t mask, std::size_t size, std::size_t chunk_bytes,
                   Scratch& scratch) {
  const auto applied = [&](std::size_t i) { return i >= 32 || (mask >> i & 1U) == 0; };
  Plain out;
  // The bytes so far are the first `size` of `from`.
  std::vector<std::uint8_t>* from = &scratch.stored;
  std::vector<std::uint8_t>* to = &scratch.plain;
  const auto room = [&](std::size_t bytes) {
    grow(*to, bytes);
    return to->data();
  };
  for (std::size_t i = d.filters.size(); i-- > 0;) {
    const Filter& f = d.filters[i];
    if (!applied(i)) {
      if (f.id == kFletcher32) {  // HDF5 leaves out a filter that fails, and this one cannot
        out.fault = "is marked as one without its checksum (fletcher32), expected it";
        return out;
      }
      continue;
    }
    if (f.id == kFletcher32) {
      if (size < kChecksumBytes) {
        out.fault = fmt::format("holds {} bytes, expected a checksum behind them", size);
        return out;
      }
      size -= kChecksumBytes;
      std::uint32_t expected = 0;
      for (std::size_t b = 0; b < kChecksumBytes; ++b) {
        expected |= static_cast<std::uint32_t>((*from)[size + b]) << 8 * b;
      }
      if (fletcher32({from->data(), size}) != expected) {
        out.fault = "data do not have the checksum (fletcher32) that stands behind them";
        return out;
      }
    } else if (f.id == kDeflate) {
      // What went into it: the chunk, with a checksum where that came before.
      std::size_t before = chunk_bytes;
      for (std::size_t j = 0; j < i; ++j) {
        before += applied(j) && d.filters[j].id == kFletcher32 ? kChecksumBytes : 0;
      }
      if (before > size * kDeflateRatio + kDeflateSlack) {
        out.fault = fmt::format("{} stored bytes cannot inflate to {}", size, before);
        return out;
      }
      std::size_t got = 0;
      const libdeflate_result result = libdeflate_zlib_decompress(decompressor(), from->data(),
                                                                  size, room(before), before, &got);
      if (result != LIBDEFLATE_SUCCESS || got != before) {
        out.fault = fmt::format("gzip data are corrupt, expected {} bytes after inflating", before);
        return out;
      }
      size = before;
      std::swap(from, to);
    } else if (i == 0 && f.value == d.element.bytes && size == chunk_bytes) {
      out.shuffled = f.value > 1;
    } else {
      unshuffle({from->data(), size}, f.value, room(size));
      std::swap(from, to);
    }
  }
  if (size != chunk_bytes) {
    out.fault = fmt::format("holds {} bytes, expected {}", size, chunk_bytes);
  }
  out.bytes = {from->data(), size};
  return out;
}

}  // namespace kvbench::h5
