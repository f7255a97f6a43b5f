// The formats in which serving engines store rows of a KV cache.
// [1] ggml, quantize_row_*_ref of ggml-quants.c: q8_0, q4_0, q4_1, q5_0, q5_1.
// [2] vLLM, --kv-cache-dtype: fp8 (E4M3), int8.
// [3] Open Compute Project, Microscaling Formats (MX) Specification v1.0: mxfp4.
// [4] NVIDIA, NVFP4: E2M1 with a scale in E4M3 for 16 channels and one in float32.
//
// A row is a token's key or value. Its channels are coded in blocks, without other rows but for
// scales of the head. Arithmetic is float32.
#pragma once

#include <string>
#include <vector>

#include "algorithms/reads.hpp"
#include "core/types.hpp"

namespace kvbench {

enum class KvFormat { f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, fp8, int8, mxfp4, nvfp4 };

/// In order of KvFormat, as in engines' options.
const std::vector<std::string>& kv_format_names();
KvFormat kv_format(const std::string& name);

/// The scale of fp8.
enum class Fp8Scale {
  one,   ///< 1
  head,  ///< of all rows: their largest magnitude / 448
  token  ///< of each row
};

/// Channels of a block, which must divide the width; 1: any width.
Index block_channels(KvFormat format);

/// Bytes of `rows` rows of `width` channels; 0 for none.
CodeBytes format_bytes(KvFormat format, Fp8Scale scale, Index rows, Index width);

/// Codes and decodes the rows of `x` [c, width]. What is stored in float16 or bfloat16 is
/// clamped to its finite range.
void read_back(KvFormat format, Fp8Scale scale, Matrix& x);

}  // namespace kvbench
