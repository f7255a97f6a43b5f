// Internal to lib/trace: the stored form of one head, compressed in parallel.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.hpp"
#include "trace/hdf5_util.hpp"

namespace kvbench::h5 {

/// The HDF5 type of stored elements, little-endian: IEEE half, uint16 (bfloat16) or IEEE single.
Handle file_type(DType type);

/// The chunks of one head, [rows, width] cut into `chunk_rows` rows each; the last is padded with
/// zeros. gzip_level 0 leaves bytes as they are, 1..9 shuffles and deflates them.
/// Throws std::bad_alloc.
std::vector<std::vector<std::uint8_t>> encode_head(MatrixView head, Index chunk_rows, DType type,
                                                   int gzip_level);

}  // namespace kvbench::h5
