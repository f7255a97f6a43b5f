// Internal to lib/trace: how HDF5 reads a file in the process that surveys it.
#pragma once

#include <cstdint>

#include "trace/hdf5_util.hpp"
#include "trace/input_file.hpp"

namespace kvbench::h5 {

/// File access properties with which HDF5 reads `file` through its descriptor, whatever name it is
/// given, once, and can open no other file: neither the target of an external link nor the source
/// of a virtual dataset. One file per process.
Handle survey_access(const InputFile& file);

/// A read of a chunk's bytes.
struct RawRead {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

/// While it lives, raw data are not read: `last` says what HDF5 wanted. H5Dread_chunk so tells
/// where a chunk lies in the time that looking it up takes. H5Dget_chunk_info, which was made to
/// tell it, goes through all chunks before it in HDF5 1.10, so that a table takes the square of its
/// length.
class RawProbe {
 public:
  RawProbe();
  ~RawProbe();
  RawProbe(const RawProbe&) = delete;
  RawProbe& operator=(const RawProbe&) = delete;

  RawRead last;
};

}  // namespace kvbench::h5
