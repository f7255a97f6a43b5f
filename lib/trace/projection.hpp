// Internal to lib/trace: a layer's output projection, [hidden, q_heads * dv], and the norms of the
// residual stream, [nq].
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "trace/hdf5_util.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

/// Checks o_proj and residual_norm of an open layer, each where it is there, and says so in
/// `layer`, whose sizes are known. Without q the two mean nothing, and without v the first; then
/// they are ignored.
void read_projection_structure(hid_t group, const Place& where, DType dtype, LayerMeta& layer);

/// What TraceReader::read_o_proj gives, of a layer that has a projection.
Matrix read_o_proj(hid_t file, const TraceMeta& meta, const PromptMeta& prompt,
                   const LayerMeta& layer, Index kv_head);

/// What TraceReader::read_residual_norm gives, of a layer that has norms.
std::vector<float> read_residual_norm(hid_t file, const TraceMeta& meta, const PromptMeta& prompt,
                                      const LayerMeta& layer);

/// Writes `w`, [hidden, heads * dv], as `dtype` in chunks of one head by up to 1024 rows. False
/// where HDF5 fails. Throws std::bad_alloc.
bool write_o_proj(hid_t group, MatrixView w, Index dv, DType dtype, int gzip_level);

/// Writes a contiguous float32 dataset. False where HDF5 fails.
bool write_floats(hid_t group, std::string_view name, const std::vector<hsize_t>& sizes,
                  const float* values);

}  // namespace kvbench::h5
