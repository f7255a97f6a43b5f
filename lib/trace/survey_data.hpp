// Internal to lib/trace: what an HDF5 file holds, as plain numbers and texts, and the bytes in
// which the process that surveys a file sends it (survey.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench::h5 {

/// An attribute. Strings, integers and floats of up to 8 bytes and enumerations have values.
struct Attribute {
  enum class Kind : std::uint8_t { integer, natural, real, text, flags, other };
  std::string name;
  Kind kind = Kind::other;
  bool null = false;  ///< of a null dataspace
  std::uint32_t rank = 0;
  std::uint64_t count = 0;             ///< elements
  std::vector<std::uint64_t> numbers;  ///< bits of int64, uint64 or double
  std::vector<std::string> texts;
  std::string fault;  ///< why there are no values, or empty
};

/// The element type of a dataset. `standard`: an IEEE float of 16, 32 or 64 bits, or an integer of
/// 8 to 64 bits without padding.
struct Element {
  enum class Kind : std::uint8_t { real, integer, natural, text, compound, enumeration, other };
  Kind kind = Kind::other;
  bool standard = false;
  bool big_endian = false;
  std::uint32_t bytes = 0;
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
  std::uint64_t address = 0;          ///< contiguous: of the first byte, or kNowhere
  std::uint64_t bytes = 0;            ///< contiguous: storage
  std::vector<std::uint8_t> compact;  ///< the elements
  std::vector<std::uint64_t> chunk;   ///< sizes of a chunk, one per axis
  bool plain_edges = false;           ///< partial chunks at the edge are not filtered
  std::vector<Filter> filters;        ///< in the order of writing
  std::vector<Chunk> chunks;          ///< of the whole grid in C order; empty: not listed
  std::string fault;                  ///< what HDF5 could not read, or empty

  // Sums over `chunks`, computed by decode_survey.
  std::uint64_t stored = 0;  ///< bytes
  std::uint64_t end = 0;     ///< end of the last one in the file, or kNowhere on overflow
};

/// Limits above which chunks are not listed and strings of one attribute are not read.
inline constexpr std::uint64_t kMaxChunks = 1000000;
inline constexpr std::uint64_t kMaxTexts = 100000;

struct Link {
  enum class Kind : std::uint8_t { object, outside, nowhere, ancestor, unreadable };
  std::string name;
  Kind kind = Kind::object;
  std::uint32_t node = 0;  ///< position in Survey::nodes; objects only
  std::string fault;       ///< of an unreadable or dangling link
};

struct Node {
  enum class Kind : std::uint8_t { group, dataset, other };
  Kind kind = Kind::other;
  std::vector<Attribute> attributes;
  std::vector<Link> links;       ///< ascending by name, each name once
  std::vector<Dataset> dataset;  ///< one where a path of the request ends at a dataset
};

/// Every node comes after those that its links lead to; the root is the last one.
struct Survey {
  std::vector<Node> nodes;
};

/// What to look at: paths below the root, where * is any name, and names of attributes of any
/// object on them. Nothing else in the file is read.
struct Request {
  std::vector<std::string_view> paths;  ///< at most 64; none: only the root's attributes
  std::vector<std::string_view> attributes;
};

using Bytes = std::vector<std::uint8_t>;

/// An answer is its nodes and an end, or a failure: why HDF5 cannot open the file. Each call
/// appends one of them to `answer`.
void append_node(Bytes& answer, const Node& node);
void append_end(Bytes& answer);
void append_failure(Bytes& answer, const std::string& what);

Bytes encode_survey(const Survey& survey);

/// The survey of an answer. The answer may hold any bytes: throws std::runtime_error if it is a
/// failure or not valid. What it allocates is proportional to the answer's length.
Survey decode_survey(std::span<const std::uint8_t> answer);

}  // namespace kvbench::h5
