// Internal to lib/trace: how HDF5 reads a file in the process that surveys it.
#pragma once

#include <chrono>
#include <cstdint>

#include "trace/hdf5_util.hpp"
#include "trace/input_file.hpp"

namespace kvbench::h5 {

/// Sets the processor time of a step, an object or some chunks, and begins the first. A step that
/// takes more ends the process by SIGPROF.
void limit_steps(std::chrono::microseconds time);
void begin_step();

/// File access properties with which HDF5 reads `file` through its descriptor, whatever the name,
/// once, and can open no other file: neither the target of an external link nor the source of a
/// virtual dataset. One file per process.
Handle survey_access(const InputFile& file);

/// A read of a chunk's bytes.
struct RawRead {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

/// During its life raw data are not read; `last` is what HDF5 asked for. With it H5Dread_chunk
/// finds where a chunk lies in one look-up. H5Dget_chunk_info walks over all chunks before it in
/// HDF5 1.10, so a table would take quadratic time.
class RawProbe {
 public:
  RawProbe();
  ~RawProbe();
  RawProbe(const RawProbe&) = delete;
  RawProbe& operator=(const RawProbe&) = delete;

  RawRead last;
};

}  // namespace kvbench::h5
