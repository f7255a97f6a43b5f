// Internal to lib/trace: one dataset or attribute as plain numbers, as HDF5 reads it. Runs only in
// the process that surveys a file.
#pragma once

#include <string>

#include "trace/hdf5_util.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// An open dataset. If HDF5 cannot read it, `fault` says why.
Dataset survey_dataset(hid_t dataset);

/// An attribute that exists. If HDF5 cannot read it, `fault` says why.
Attribute survey_attribute(hid_t object, const std::string& name);

}  // namespace kvbench::h5
