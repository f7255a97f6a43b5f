// Internal to lib/trace: a regular file that is opened once and read by position.
#pragma once

#include <array>
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

  /// Whether size, times and inode are those that the file had when it was opened. A file that got
  /// another name, or none, may be told to have changed; its SHA-256 says.
  bool unchanged() const;
  /// SHA-256 of the open file as it is now. Throws IoError.
  std::string sha256() const;

  /// Fills `to` with the bytes from `address` on. Returns why that fails; empty: it did not.
  std::string read(std::uint64_t address, std::span<std::uint8_t> to) const;

 private:
  // What changes with every write: device, inode, size, modification and change of state.
  using State = std::array<std::int64_t, 7>;
  State state() const;
  bool has_signature() const;

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  State opened_{};
};

}  // namespace kvbench::h5
