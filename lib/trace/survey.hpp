// Internal to lib/trace: what an HDF5 file holds, as plain numbers and texts.
//
// HDF5 crashes or runs without end on some damaged files, and follows links to other files. So it
// reads an input file only in a process of its own, which has limits and may die (survey_walk.cpp),
// and which sends what it found through a pipe. This process trusts nothing of that: it decodes
// with bounds (survey_code.cpp), checks sizes and addresses against the file (dataset.cpp), and
// reads the values itself (values.cpp).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/input_file.hpp"

namespace kvbench::h5 {

/// An attribute. Strings, integers and floats of up to 8 bytes and enumerations have values.
struct Attribute {
  enum class Kind : std::uint8_t { integer, natural, real, text, flags, other, last = other };
  std::string name;
  Kind kind = Kind::other;
  bool null = false;  ///< of a null dataspace
  std::uint32_t rank = 0;
  std::uint64_t count = 0;             ///< elements
  std::vector<std::uint64_t> numbers;  ///< bits of int64, uint64 or double; flags: 0 or 1
  std::vector<std::string> texts;
  std::string fault;  ///< why there are no values; empty: there are
};

/// The element type of a dataset.
struct Element {
  enum class Kind : std::uint8_t {
    real,
    integer,
    natural,
    text,
    compound,
    enumeration,
    other,
    last = other
  };
  Kind kind = Kind::other;
  bool standard =
      false;  ///< IEEE float of 16, 32 or 64 bits, or integer of 8 to 64 without padding
  bool big_endian = false;
  std::uint32_t bytes = 0;
};

/// One step of a filter pipeline.
struct Filter {
  std::uint32_t id = 0;
  std::uint32_t value = 0;  ///< its first parameter; shuffle: bytes of an element
  std::string label;
};

/// Where a chunk lies. Bytes 0: it is not there, or empty.
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
    other,
    last = other
  };
  Element element;
  std::vector<std::uint64_t> sizes;
  Layout layout = Layout::other;
  std::uint64_t address = 0;          ///< contiguous: of the first byte; kNowhere: none
  std::uint64_t bytes = 0;            ///< contiguous: storage
  std::vector<std::uint8_t> compact;  ///< the elements
  std::vector<std::uint64_t> chunk;   ///< sizes of a chunk, one per axis
  bool plain_edges = false;           ///< chunks that reach over the edge are not filtered
  std::vector<Filter> filters;        ///< in the order of writing
  std::vector<Chunk> chunks;          ///< of the whole grid in C order; empty: not listed
  std::string fault;                  ///< what HDF5 could not read; empty: nothing

  // Of the chunks, taken when the answer is decoded.
  std::uint64_t stored = 0;  ///< bytes together
  std::uint64_t end = 0;     ///< behind the last one in the file; kNowhere: beyond what can be
};

/// More chunks than this are not listed, and more strings of one attribute not read.
inline constexpr std::uint64_t kMaxChunks = 1000000;
inline constexpr std::uint64_t kMaxTexts = 100000;

struct Link {
  enum class Kind : std::uint8_t {
    object,
    outside,
    nowhere,
    ancestor,
    unreadable,
    last = unreadable
  };
  std::string name;
  Kind kind = Kind::object;
  std::uint32_t node = 0;  ///< position in Survey::nodes; objects only
  std::string fault;       ///< why an unreadable or dangling one is so
};

struct Node {
  enum class Kind : std::uint8_t { group, dataset, other, last = other };
  Kind kind = Kind::other;
  std::vector<Attribute> attributes;
  std::vector<Link> links;       ///< ascending by name, each name once
  std::vector<Dataset> dataset;  ///< one where a path of the request ends at a dataset
};

/// Every node comes after those that its links lead to; the root is the last one.
struct Survey {
  std::vector<Node> nodes;
};

/// What to look at: paths below the root, where * is any name, and names of attributes, wherever
/// they stand. Nothing else in the file is read.
struct Request {
  std::vector<std::string_view> paths;  ///< at most 64; none: the root's attributes alone
  std::vector<std::string_view> attributes;
};

/// Processor time for one step, an object or some chunks. One that takes more is tried again with
/// the next, and the last is final: a virtual machine that stands still for seconds is charged for
/// them, and a file that HDF5 never ends with takes all of them.
using StepTimes = std::array<std::chrono::microseconds, 2>;
inline constexpr StepTimes kStepTimes{std::chrono::seconds{2}, std::chrono::seconds{2}};

/// Surveys an open file in a process of its own. Throws InputError of one line where the file is
/// damaged, the process dies, or its answer makes no sense; IoError where no process can be had.
/// Call it while no other thread of the program is inside HDF5 without a Session.
Survey survey(const InputFile& file, const Request& request, const StepTimes& times = kStepTimes);

/// The answer of that process. Throws std::runtime_error on one that is not whole.
Survey decode_survey(std::span<const std::uint8_t> answer);

}  // namespace kvbench::h5
