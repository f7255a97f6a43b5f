// Internal to lib/trace: the process that surveys a file.
#pragma once

#include "trace/survey.hpp"

namespace kvbench::h5 {

/// Processor time in seconds that HDF5 has for one step: an object, or some chunks. More, and
/// SIGXCPU ends the process. And for all of a file; more, and SIGKILL does.
inline constexpr unsigned kStepSeconds = 2;
inline constexpr unsigned kFileSeconds = 600;

/// A step begins.
void grant_processor_time();

/// Surveys `file`, writes the answer to the descriptor `to`, and ends the process, which does
/// nothing else: neither buffers nor handlers of the one that it was forked from run.
[[noreturn]] void survey_and_exit(const InputFile& file, const Request& request, int to) noexcept;

}  // namespace kvbench::h5
