// Internal to lib/trace: elements as a file stores them, compressed and checksummed in parallel.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.hpp"

namespace kvbench::h5 {

using Bytes = std::vector<std::uint8_t>;

/// `count` numbers rounded to elements of `type`.
Bytes stored_elements(const float* x, Index count, DType type);

/// The chunks of one head, [rows, width] cut into `chunk_rows` rows each; the last is padded with
/// zeros. gzip_level 0 leaves bytes as they are, 1..9 shuffles and deflates them; a checksum
/// (fletcher32) stands behind each.
/// Throws std::bad_alloc.
std::vector<Bytes> encode_head(MatrixView head, Index chunk_rows, DType type, int gzip_level);

}  // namespace kvbench::h5
