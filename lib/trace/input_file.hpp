// Internal to lib/trace: a regular file that is opened once and read by position.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/descriptor.hpp"

namespace kvbench::h5 {

/// An HDF5 file that is open for reading. Thread-safe.
class InputFile {
 public:
  /// Throws InputError unless it is a regular, readable HDF5 file that nobody writes. `expected`
  /// ends the message: "a trace written as ... says".
  InputFile(std::string path, std::string_view expected);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }  ///< size when it was opened
  int descriptor() const { return descriptor_.get(); }

  /// Whether size, times and inode are as when it was opened. False is no proof of a change: a new
  /// name gives false too.
  bool unchanged() const;
  /// SHA-256 of the open file as it is now. Throws IoError.
  std::string sha256() const;

  /// Fills `to` with the bytes from `address` on. Returns why that fails, or "".
  std::string read(std::uint64_t address, std::span<std::uint8_t> to) const;

 private:
  // Device, inode, size, times of modification and of change of state.
  using State = std::array<std::int64_t, 7>;
  State state() const;
  bool has_signature() const;

  std::string path_;
  Descriptor descriptor_;
  std::uint64_t bytes_ = 0;
  State opened_{};
};

}  // namespace kvbench::h5
