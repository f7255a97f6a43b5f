// Internal to lib/trace: the datasets of a trace, opened and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "trace/hdf5_util.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// A dataset of floats that the schema knows.
struct Spec {
  const char* name;
  std::size_t rank;
  const char* axes;
  enum { as_trace, as_trace_or_float32, always_float32 } type = as_trace;
};

/// The q, k or v of a layer.
constexpr Spec rows_spec(Rows what) {
  const char* name = what == Rows::queries ? "q" : what == Rows::keys ? "k" : "v";
  return {name, 3, "heads, tokens, width"};
}
inline constexpr Spec kOProj{schema::kOProj.data(), 2, "hidden, q_heads * dv",
                             Spec::as_trace_or_float32};
inline constexpr Spec kResidualNorm{schema::kResidualNorm.data(), 1, "nq", Spec::always_float32};
inline constexpr Spec kCos{"cos", 2, "positions, rope_dim / 2", Spec::always_float32};
inline constexpr Spec kSin{"sin", 2, "positions, rope_dim / 2", Spec::always_float32};

/// Sizes of the q, k or v of a layer.
inline std::vector<Index> rows_sizes(const LayerMeta& layer, Rows what) {
  return what == Rows::queries
             ? std::vector{layer.q_heads, layer.nq, layer.d}
             : std::vector{layer.kv_heads, layer.n, what == Rows::keys ? layer.d : layer.dv};
}

/// How a chunked dataset is stored when its chunks can be decoded without HDF5's filters.
struct ChunkLayout {
  std::array<hsize_t, 3> dims{};  ///< elements per chunk and axis
  std::uint32_t shuffle_bit =
      0;  ///< filter-mask bit that says "shuffle was skipped"; 0: no shuffle
  std::uint32_t deflate_bit = 0;  ///< the same for deflate
  std::uint32_t fill = 0;         ///< bits of the fill value, in the low bytes
  Index elements = 0;             ///< dims multiplied
};

/// An open dataset whose rank, sizes, element type, filters and storage have been checked.
struct Tensor : Object {
  std::vector<Index> sizes = {};  ///< [rank], each at least 1
  DType dtype = DType::float32;
  bool raw_chunks = false;  ///< `chunk` holds and read_raw may be used
  ChunkLayout chunk = {};
  std::uint64_t file_bytes = 0;  ///< of the file that holds it (a link may lead elsewhere)

  Index heads() const { return sizes.front(); }
  Index rows() const { return sizes.end()[-2]; }
  Index width() const { return sizes.back(); }
};

/// Opens a dataset of `group` in a trace of `dtype` and refuses what docs/trace_format.md says,
/// except values and sizes that disagree with other datasets.
Tensor open_tensor(const Object& group, const Spec& spec, DType dtype);

/// The same, where a file that is open has been checked before: refuses other `sizes`, for the file
/// may have been replaced since.
Tensor open_again(const Object& group, const Spec& spec, DType dtype,
                  const std::vector<Index>& sizes);

/// Refuses a dataset whose `bytes` cannot be what the file holds: more than its storage when
/// contiguous or compact, implausibly much when chunked, or filters that are not available.
void check_storage(const Object& dataset, std::uint64_t bytes);

/// The HDF5 type of stored elements, little-endian: IEEE half, uint16 (bfloat16) or IEEE single.
Handle file_type(DType type);

}  // namespace kvbench::h5
