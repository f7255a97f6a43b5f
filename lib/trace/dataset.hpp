// Internal to lib/trace: the datasets of a trace or caches file, checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/types.hpp"
#include "trace/hdf5_object.hpp"
#include "trace/schema.hpp"
#include "trace/storage.hpp"

namespace kvbench::h5 {

/// A dataset that a format knows.
struct Spec {
  enum Type : std::uint8_t {
    as_trace,  ///< of the trace's dtype
    as_trace_or_float32,
    always_float32,
    reals,     ///< of 16 to 64 bits
    integers,  ///< of 8 to 64 bits
  };
  const char* name;
  std::size_t rank;  ///< 0: any shape, also without elements, and no checksums of values
  const char* axes;
  Type type = as_trace;
};

/// The q, k or v of a layer.
constexpr Spec rows_spec(LayerTensor what) {
  const char* name = what == LayerTensor::queries ? "q" : what == LayerTensor::keys ? "k" : "v";
  return {name, 3, "heads, tokens, width"};
}
inline constexpr Spec kTokenIds{schema::kTokenIds.data(), 1, "n_tokens", Spec::integers};
inline constexpr Spec kOProj{schema::kOProj.data(), 2, "hidden, q_heads * dv",
                             Spec::as_trace_or_float32};
inline constexpr Spec kResidualNorm{schema::kResidualNorm.data(), 1, "nq", Spec::always_float32};
inline constexpr Spec kExtraQ{"q", 3, "q_heads, m, width"};
inline constexpr Spec kExtraK{"k", 3, "kv_heads, m, width"};
inline constexpr Spec kExtraNorm{schema::kResidualNorm.data(), 1, "m", Spec::always_float32};
inline constexpr Spec kPosition{"position", 1, "m", Spec::integers};
/// `name` must outlive it.
inline Spec scores_spec(const std::string& name) {
  return {name.c_str(), 2, "kv_heads, tokens", Spec::always_float32};
}
inline constexpr Spec kCos{"cos", 2, "positions, rope_dim / 2", Spec::always_float32};
inline constexpr Spec kSin{"sin", 2, "positions, rope_dim / 2", Spec::always_float32};

/// A dataset whose rank, sizes, element type, filters and storage have been checked. It needs no
/// open file.
struct Tensor {
  std::shared_ptr<const Dataset> data;
  Place where;
  std::vector<Index> sizes;  ///< [rank], each at least 1
  DType dtype = DType::float32;
  std::vector<std::string> digests;  ///< rank 3: one per head, otherwise one; or none

  Index heads() const { return sizes.front(); }
  Index rows() const { return sizes.end()[-2]; }
  Index width() const { return sizes.back(); }
};

/// A dataset of `group` in a file of `dtype`. Throws InputError as docs/trace_format.md says, but
/// checks neither values nor sizes against other datasets.
Tensor open_tensor(const Hdf5Object& group, const Spec& spec, DType dtype);

/// Throws InputError if two datasets or chunks that were opened share bytes of the file. A chunk's
/// checksum does not show that its bytes are another chunk's.
void check_disjoint(const Hdf5Object& root);

}  // namespace kvbench::h5
