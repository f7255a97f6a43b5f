// Internal to lib/trace: values of a dataset, either whole heads from raw chunks decoded here, in
// parallel, or through HDF5. Both give the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/dataset.hpp"

namespace kvbench::h5 {

/// One head of a dataset and where its [rows, width] values go.
struct HeadRead {
  const Tensor* tensor = nullptr;
  Index head = 0;
  float* out = nullptr;
};

/// Buffers that one reader keeps between heads, because fresh ones cost more in page faults than
/// decoding into them does. Contents mean nothing between calls.
struct ReadBuffers {
  std::vector<std::uint8_t> stored;   ///< compressed chunks, at most some 32 MiB beyond one chunk
  std::vector<std::uint16_t> narrow;  ///< elements of a 16-bit type
};

/// Reads chunks with tensor->raw_chunks set. HDF5 is called from this thread only; inflating,
/// unshuffling and widening run in parallel over the chunks of all `reads`.
/// Refuses chunks that are missing bytes, do not inflate, or have the wrong size.
void read_raw(std::span<const HeadRead> reads, ReadBuffers& buffers);

/// Reads `count` elements from `start` on, [rank] each, of any layout, through H5Dread in the
/// file's own element type. `what`: names them where they cannot be read.
void read_block(const Tensor& tensor, const std::string& what, const std::vector<Index>& start,
                const std::vector<Index>& count, float* out, ReadBuffers& buffers);

}  // namespace kvbench::h5
