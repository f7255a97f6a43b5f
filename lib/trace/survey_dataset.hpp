// Internal to lib/trace: how HDF5 reads a file, its datasets and attributes in the process that
// surveys it. Nothing else calls this.
#pragma once

#include <chrono>
#include <string>

#include "trace/hdf5_util.hpp"
#include "trace/input_file.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// Sets the processor time of a step, an object or some chunks, and begins the first. A step that
/// takes more ends the process by SIGPROF.
void limit_steps(std::chrono::microseconds time);
void begin_step();

/// File access properties with which HDF5 opens `file` once, whatever the name, and no other file:
/// neither the target of an external link nor the source of a virtual dataset. It reads through the
/// descriptor. One file per process.
Handle survey_access(const InputFile& file);

/// An open dataset. If HDF5 cannot read it, `fault` says why.
Dataset survey_dataset(hid_t dataset);

/// An attribute that exists. If HDF5 cannot read it, `fault` says why.
Attribute survey_attribute(hid_t object, const std::string& name);

}  // namespace kvbench::h5
