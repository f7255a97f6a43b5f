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
  enum class Kind : std::uint8_t { real, integer, natural, text, compound, enumeration, other };
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

inline constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
/// Datasets of more chunks are rejected.
inline constexpr std::uint64_t kMaxChunks = 1000000;

struct Dataset {
  enum class Layout : std::uint8_t {
    contiguous,
    compact,
    chunked,
    external,
    virtual_storage,
    other
  };
  Element element;
  std::vector<std::uint64_t> sizes;
  Layout layout = Layout::other;
  std::uint64_t address = 0;         ///< contiguous: of the first byte, or kNowhere
  std::uint64_t bytes = 0;           ///< contiguous: storage
  Bytes compact;                     ///< the elements
  std::vector<std::uint64_t> chunk;  ///< sizes of a chunk, one per axis
  bool plain_edges = false;          ///< partial chunks at the edge are not filtered
  std::vector<Filter> filters;       ///< in the order of writing
  std::vector<Chunk> chunks;         ///< of the whole grid in C order; empty: not listed
  std::string fault;                 ///< what HDF5 could not read, or empty
};

/// Chunks of the whole grid, or a number above kMaxChunks if there are more. All sizes at least 1.
std::uint64_t grid_size(const Dataset& dataset);

}  // namespace kvbench::h5
