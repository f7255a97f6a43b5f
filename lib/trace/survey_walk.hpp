// Internal to lib/trace: the process that surveys a file.
#pragma once

#include <chrono>

#include "trace/survey.hpp"

namespace kvbench::h5 {

/// A step, an object or some chunks, begins: the time of a step counts anew.
void grant_processor_time();

/// Surveys `file`, writes the answer to the descriptor `to`, and ends the process, which does
/// nothing else: neither buffers nor handlers of the one that it was forked from run. A step that
/// takes more processor time than `step` ends it by SIGPROF.
[[noreturn]] void survey_and_exit(const InputFile& file, const Request& request,
                                  std::chrono::microseconds step, int to) noexcept;

}  // namespace kvbench::h5
