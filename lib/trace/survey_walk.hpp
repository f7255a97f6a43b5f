// Internal to lib/trace: the process that surveys a file.
#pragma once

#include <chrono>

#include "trace/input_file.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// Surveys `file`, writes the answer to the descriptor `to`, and ends the process without running
/// buffers or handlers of the process that it was forked from. A step that takes more processor
/// time than `step` ends it by SIGPROF.
[[noreturn]] void survey_and_exit(const InputFile& file, const Request& request,
                                  std::chrono::microseconds step, int to) noexcept;

}  // namespace kvbench::h5
