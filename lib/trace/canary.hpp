// Internal to lib/trace: what protects this process from HDF5, which crashes or never ends on some
// damaged files.
#pragma once

#include <array>
#include <chrono>
#include <functional>

#include "trace/hdf5_file.hpp"
#include "trace/hdf5_object.hpp"
#include "trace/input_file.hpp"

namespace kvbench::h5 {

/// Processor time of the first and of the second try for one step, an object or some chunks. There
/// are two tries because a stalled virtual machine is charged for its stall. A file on which HDF5
/// never ends takes both.
using StepTimes = std::array<std::chrono::microseconds, 2>;
inline constexpr StepTimes kStepTimes{std::chrono::seconds{2}, std::chrono::seconds{2}};

/// Runs `read` in a child process with limits on memory and time. Throws the InputError that it
/// threw, or one that says how the process died; IoError if no process can be started or memory may
/// have been short.
void rehearse(const InputFile& file, const std::function<void()>& read, const StepTimes& times);

/// What `read` returns for the root group of a file. It runs in a child process first, then here,
/// so it makes the same calls twice; it depends on the file alone, and its result holds no object
/// of HDF5. Throws as rehearse() and `read` do.
template <class Read>
auto read_guarded(const InputFile& file, const Read& read, const StepTimes& times = kStepTimes) {
  const auto whole = [&] {
    Hdf5File opened(file);
    return read(open_root(opened, file.path()));
  };
  rehearse(
      file, [&] { whole(); }, times);
  const Session session;
  return whole();
}

}  // namespace kvbench::h5
