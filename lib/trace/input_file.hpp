// Internal to lib/trace: a regular file that is opened once and read by position.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvbench::h5 {

/// An HDF5 file that is open for reading, whatever takes its name later. Thread-safe.
class InputFile {
 public:
  /// Refuses with an InputError of one line what is no regular file, cannot be read, is not HDF5
  /// (`expected`: what it should be, "a trace written as ... says"), or is being written.
  InputFile(std::string path, std::string_view expected);
  ~InputFile();
  InputFile(InputFile&& o) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }  ///< size when it was opened
  int descriptor() const { return descriptor_; }

  /// Fills `to` with the bytes from `address` on. Returns why that fails; empty: it did not.
  std::string read(std::uint64_t address, std::span<std::uint8_t> to) const;

 private:
  bool has_signature() const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvbench::h5
