// Internal to lib/trace: HDF5's filters undone without HDF5. Shuffle, gzip and fletcher32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/survey.hpp"

namespace kvbench::h5 {

bool can_undo(const Filter& filter);

/// Bytes of the checksum that the filter fletcher32 puts behind a chunk, little-endian.
inline constexpr std::size_t kChecksumBytes = 4;
/// Fletcher's checksum over 16-bit words, high byte first, as HDF5 takes it.
std::uint32_t fletcher32(std::span<const std::uint8_t> bytes);

/// Buffers that a thread keeps between chunks, because fresh ones cost more in page faults than
/// decoding into them does.
struct Scratch {
  std::vector<std::uint8_t> stored;  ///< a chunk as the file holds it
  std::vector<std::uint8_t> plain;   ///< the same behind a filter
};

/// Makes the buffer at least `size` long.
inline void grow(std::vector<std::uint8_t>& buffer, std::size_t size) {
  if (buffer.size() < size) {
    buffer.resize(size);
  }
}

/// A chunk behind its filters.
struct Plain {
  std::span<const std::uint8_t> bytes;  ///< in one of the buffers; `chunk_bytes` of them
  bool shuffled = false;  ///< elements still lie as byte planes: the caller joins them as it reads
  std::string fault;      ///< why there are no bytes; empty: there are
};

/// Undoes the filters of a chunk of `chunk_bytes`, the first `size` bytes of scratch.stored, except
/// a shuffle of its elements. Each filter is there once at most. Buffers never hold more than
/// chunk_bytes and a checksum.
Plain undo_filters(const Dataset& dataset, std::uint32_t mask, std::size_t size,
                   std::size_t chunk_bytes, Scratch& scratch);

}  // namespace kvbench::h5
