// Internal to lib/trace: how a dataset of an HDF5 file is stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvbench::h5 {

using Bytes = std::vector<std::uint8_t>;

/// The element type of a dataset. `standard`: an IEEE float of 16, 32 or 64 bits, or an integer of
/// 8 to 64 bits without padding.
struct Element {
  enum class Kind : std::uint8_t { other, real, integer, unsigned_integer };
  Kind kind = Kind::other;
  bool standard = false;
  bool big_endian = false;
  std::uint64_t bytes = 0;
};

/// One step of a filter pipeline.
struct Filter {
  std::uint32_t id = 0;
  std::uint32_t value = 0;  ///< its first parameter; shuffle: bytes of an element
  std::string label;
};

/// Where a chunk lies. Bytes 0: missing or empty.
struct Chunk {
  std::uint64_t address = 0;
  std::uint32_t bytes = 0;
  std::uint32_t mask = 0;  ///< bit i: filter i was skipped
};

struct Dataset {
  enum class Layout : std::uint8_t { contiguous, compact, chunked, other };
  Element element;
  std::vector<std::uint64_t> sizes;
  Layout layout = Layout::other;
  std::uint64_t address = 0;         ///< contiguous: of the first byte
  std::uint64_t bytes = 0;           ///< contiguous: storage, 0 if there is none
  std::vector<std::uint64_t> chunk;  ///< sizes of a chunk, one per axis
  bool plain_edges = false;          ///< partial chunks at the edge are not filtered
  std::vector<Filter> filters;       ///< in the order of writing
  // Of a dataset whose storage was checked.
  bool checked = false;
  Bytes compact;              ///< the elements
  std::vector<Chunk> chunks;  ///< of the whole grid in C order
};

}  // namespace kvbench::h5
