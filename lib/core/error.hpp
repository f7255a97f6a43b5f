// Typed errors, each with one line (who, where, got, expected). Only apps/kvbench.cpp maps them to
// exit codes; lib never calls exit.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvbench {

/// Base of all errors of kvbench.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bad usage or bad input: an option, a configuration, a trace or a CSV. Exit code 2.
class InputError : public Error {
 public:
  using Error::Error;
};

/// Throws InputError unless `good`.
inline void check_input(bool good, const std::string& message) {
  if (!good) {
    throw InputError(message);
  }
}

/// A failure of the machine: a file cannot be written, a device is absent or full. Exit code 3.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A job or a device has no memory left. The replay runs such a job again, alone.
class OutOfMemory : public IoError {
 public:
  using IoError::IoError;
};

/// A method cannot meet its byte budget. A result (`status=infeasible`), not a fault.
class Infeasible : public Error {
 public:
  /// `needed_bytes`: the least bytes that the method can hold for the middle.
  Infeasible(const std::string& what, std::int64_t needed_bytes)
      : Error(what), needed_bytes_(needed_bytes) {}
  std::int64_t needed_bytes() const { return needed_bytes_; }

 private:
  std::int64_t needed_bytes_;
};

}  // namespace kvbench
