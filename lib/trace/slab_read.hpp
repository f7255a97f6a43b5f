// Internal to lib/trace: values of a dataset, read from the file without HDF5.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/types.hpp"
#include "trace/chunk_codec.hpp"
#include "trace/dataset.hpp"

namespace kvbench::h5 {

/// A box of a dataset of rank 1 to 3 whose storage was checked, and where its elements go in C
/// order. Axes that the dataset lacks come first, with start 0 and count 1.
struct Slab {
  const Dataset* data = nullptr;
  const Place* where = nullptr;
  std::array<Index, 3> start{};
  std::array<Index, 3> count{};
  Convert convert = nullptr;
  std::uint8_t* out = nullptr;
  std::size_t out_width = 0;  ///< bytes of a converted element
};

/// `count` elements from `start` on, [rank] each, as float32.
Slab slab(const Tensor& tensor, const std::vector<Index>& start, const std::vector<Index>& count,
          float* out);
/// All of a dataset of integers of up to 64 bits. Naturals above the largest become it.
Slab whole_integers(const Tensor& integers, std::int64_t* out);

/// Reads all slabs, chunks in parallel. Unfiltered data are read only where the slabs lie. Needs
/// 256 MiB or one chunk beside the outputs. Throws InputError on chunks that are incomplete, do not
/// inflate, or have the wrong size or checksum. Thread-safe.
void read_slabs(const InputFile& file, std::span<const Slab> slabs);

}  // namespace kvbench::h5
