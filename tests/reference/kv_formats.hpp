// Rows of a KV cache in the formats of serving engines, as bytes that are then read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

struct StoredRows {
  std::vector<std::uint8_t> bytes;
  Rows rows;  ///< read from `bytes`
};

/// `type`: f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, fp8, int8, mxfp4, nvfp4. `fp8_scale`: one,
/// head, token.
StoredRows stored_rows(const std::string& type, const Rows& rows, const std::string& fp8_scale);

/// Rows times the matrix with entries (-1)^popcount(i & j) / sqrt(block), `block` channels at a
/// time.
Rows turned(const Rows& rows, std::size_t block);

}  // namespace reference
