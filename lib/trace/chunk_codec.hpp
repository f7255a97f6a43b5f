// Internal to lib/trace: elements and chunks as a file stores them, encoded and decoded without
// HDF5, whose filters run in one thread and whose conversion from half runs at tens of MB/s. The
// bytes are the same format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/sha256.hpp"
#include "core/types.hpp"
#include "trace/storage.hpp"

namespace kvbench::h5 {

/// `count` numbers rounded to elements of `type`.
Bytes stored_elements(const float* x, Index count, DType type);

/// SHA-256 of elements that come in pieces: those of the file's type, little-endian. It does not
/// depend on chunks and filters.
class ElementHash {
 public:
  explicit ElementHash(DType type) : type_(type) {}
  /// `count` numbers that came from elements of the type.
  void add(const float* x, Index count);
  /// Numbers that came from integers of `width` bytes.
  void add_integers(std::span<const std::int64_t> x, std::size_t width);
  std::string text() { return hash_.text(); }

 private:
  Sha256 hash_;
  DType type_;
};

/// The chunks of one head, [rows, width] cut into `chunk_rows` rows each, encoded in parallel. The
/// last one is padded with zeros. gzip_level 0 leaves bytes as they are, 1..9 shuffles and deflates
/// them. Each chunk ends with a checksum (fletcher32). Throws std::bad_alloc.
std::vector<Bytes> encode_head(MatrixView head, Index chunk_rows, DType type, int gzip_level);

/// Whether it is shuffle, gzip or fletcher32.
bool can_undo(const Filter& filter);

/// Buffers that a thread keeps between chunks, because page faults of fresh ones cost more than
/// decoding into them.
struct Scratch {
  Bytes stored;  ///< a chunk as the file holds it
  Bytes other;   ///< output of a filter

  /// The first `size` bytes of `stored`, made at least that long.
  std::span<std::uint8_t> reserve(std::size_t size);
};

/// Undoes the filters of a chunk, the first `size` bytes of scratch.stored, each filter at most
/// once. Returns `chunk_bytes` bytes in one of the buffers, which never hold more than that and a
/// checksum. Throws std::runtime_error on corrupt chunks.
std::span<std::uint8_t> undo_filters(const Dataset& dataset, std::uint32_t mask, std::size_t size,
                                     std::size_t chunk_bytes, Scratch& scratch);

/// `count` little-endian elements to numbers of another type at `to`.
using Convert = void (*)(const std::uint8_t* from, Index count, void* to);

/// To float32, from a standard float or, if `type` says so, the bits of bfloat16.
Convert real_converter(const Element& element, DType type);
/// To int64, from a standard integer. Naturals above the largest become it.
Convert integer_converter(const Element& element);

/// Reverses the bytes of each element of `width` bytes.
void swap_bytes(std::span<std::uint8_t> elements, std::size_t width);

}  // namespace kvbench::h5
