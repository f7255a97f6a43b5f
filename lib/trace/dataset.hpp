// Internal to lib/trace: checks of datasets, and one q, k or v, [heads, tokens, width], opened.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "trace/hdf5_util.hpp"

namespace kvbench::h5 {

/// How a chunked dataset is stored when its chunks can be decoded without HDF5's filters.
struct ChunkLayout {
  std::array<hsize_t, 3> dims{};  ///< elements per chunk and axis
  bool shuffle = false;
  bool deflate = false;
  std::uint32_t shuffle_bit = 0;  ///< filter-mask bit that says "shuffle was skipped"
  std::uint32_t deflate_bit = 0;  ///< the same for deflate
  std::uint32_t fill = 0;         ///< bits of the fill value, in the low bytes
  Index elements = 0;             ///< dims multiplied
};

/// An open dataset whose rank, sizes, element type, filters and storage have been checked.
struct Tensor {
  Handle id;
  Place where;
  Index heads = 0;
  Index rows = 0;
  Index width = 0;
  DType dtype = DType::float32;
  bool big_endian = false;
  bool raw_chunks = false;  ///< `chunk` holds and read_raw may be used
  ChunkLayout chunk;
  std::uint64_t file_bytes = 0;  ///< of the file that holds it (a link may lead elsewhere)

  Index element_bytes() const { return bytes_per_element(dtype); }
};

/// Opens the dataset `name` below `parent` and refuses what docs/trace_format.md says, except
/// values and sizes that disagree with other datasets.
Tensor open_tensor(hid_t parent, std::string_view name, DType expected, const Place& group);

/// How the elements of a dataset are stored.
struct ElementType {
  DType dtype = DType::float32;
  bool big_endian = false;
};

/// Refuses elements that are not stored as `expected` has it, nor as float32 where that will do.
ElementType check_type(hid_t dataset, DType expected, bool or_float32, const Place& where);

/// The sizes of a dataset, [rank]. Refuses another rank than that of `axes`, sizes of zero, and
/// what check_storage refuses.
std::vector<Index> check_shape(hid_t dataset, std::size_t rank, std::string_view axes,
                               Index element_bytes, const Place& where);

/// Bytes that the file of `object` has on disk.
std::uint64_t file_size_of(hid_t object);

/// Refuses a dataset whose `bytes` cannot be what the file holds: more than its storage when
/// contiguous or compact, implausibly much when chunked, or filters that are not available.
void check_storage(hid_t dataset, std::uint64_t bytes, std::uint64_t file_bytes,
                   const Place& where);

}  // namespace kvbench::h5
