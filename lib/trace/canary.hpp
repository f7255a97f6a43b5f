// Internal to lib/trace: what protects this process from HDF5, which crashes or never ends on some
// damaged files.
#pragma once

#include <functional>

#include "trace/hdf5_file.hpp"
#include "trace/hdf5_object.hpp"
#include "trace/input_file.hpp"

namespace kvbench::h5 {

/// Runs `read` in a child process with limits on memory and time. Throws the InputError that it
/// threw, or one that says how the process died; IoError if no process can be started or memory may
/// have been short.
void rehearse(const InputFile& file, const std::function<void()>& read);

/// What `read` returns for the root group of a file. It runs in a child process first, then here,
/// so it makes the same calls twice; it depends on the file alone, and its result holds no object
/// of HDF5. Throws as rehearse() and `read` do.
template <class Read>
auto read_guarded(const InputFile& file, const Read& read) {
  const auto whole = [&] {
    Hdf5File opened(file);
    return read(open_root(opened, file.path()));
  };
  rehearse(file, [&] { whole(); });
  const Session session;
  return whole();
}

}  // namespace kvbench::h5
