// Internal to lib/trace: surveys of HDF5 files.
//
// HDF5 crashes or never ends on some damaged files, and follows links to other files. It therefore
// reads an input file only in a child process with limits, which may die (survey_walk.cpp) and
// sends what it found through a pipe. This process does not trust the answer: it decodes it with
// bounds (survey_data.cpp), checks sizes and addresses against the file (dataset.cpp), and reads
// the values itself (slab_read.cpp).
#pragma once

#include <array>
#include <chrono>

#include "trace/input_file.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// Processor time of the first and of the second try for one step, an object or some chunks. There
/// are two tries because a stalled virtual machine is charged for its stall. A file on which HDF5
/// never ends takes both.
using StepTimes = std::array<std::chrono::microseconds, 2>;
inline constexpr StepTimes kStepTimes{std::chrono::seconds{2}, std::chrono::seconds{2}};

/// Surveys an open file in a process of its own. Throws InputError of one line if the file is
/// damaged, the process dies or its answer is invalid; IoError if no process can be started.
/// Must not be called while another thread is inside HDF5 without a Session.
Survey survey(const InputFile& file, const Request& request, const StepTimes& times = kStepTimes);

}  // namespace kvbench::h5
