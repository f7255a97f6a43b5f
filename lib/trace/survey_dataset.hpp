// Internal to lib/trace: one dataset or attribute as plain numbers, as HDF5 tells it. Runs only in
// the process that surveys a file.
#pragma once

#include <string>

#include "trace/hdf5_util.hpp"
#include "trace/survey.hpp"

namespace kvbench::h5 {

/// An open dataset. What HDF5 cannot read is its `fault`.
Dataset survey_dataset(hid_t dataset);

/// An attribute that is there. What HDF5 cannot read is its `fault`.
Attribute survey_attribute(hid_t object, const std::string& name);

}  // namespace kvbench::h5
