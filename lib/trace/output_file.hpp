// Internal to lib/trace: an HDF5 file that has its name only once it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "trace/hdf5_util.hpp"

namespace kvbench::h5 {

/// Texts that an attribute is given at most: it holds 64 KiB, and a string takes 16 bytes of it.
inline constexpr std::size_t kMaxTextsWritten = 4000;

/// Stored strings: variable length, UTF-8, what h5py hands out as str and not as bytes.
Handle text_type();

/// A file being written to PATH.tmp. All members throw IoError, and but for the destructor all are
/// called within a Session. Elements lie in memory as they are stored: little-endian.
///
/// After a failed write HDF5 can neither close the file nor end (it reads memory that it has
/// freed), so the open file is left to the end of the process, emptied and without a name.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  /// Without finish(), removes PATH.tmp and leaves PATH as it was.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// The open file; invalid once it is finished. What is made in it is closed before it is.
  const Handle& file() const { return file_; }
  const std::string& path() const { return path_; }
  /// "PATH.tmp: WHAT cannot be written (HDF5's reason)".
  [[noreturn]] void fail(std::string_view what) const;

  /// A new group, and those above it that are missing.
  Handle group(hid_t parent, std::string_view path) const;

  void attribute(hid_t object, const char* name, std::string_view text) const;
  /// One string, or an array of several.
  void attribute(hid_t object, const char* name, std::span<const std::string> texts) const;
  void attribute(hid_t object, const char* name, std::int64_t value) const;
  void attribute(hid_t object, const char* name, std::uint64_t value) const;
  void attribute(hid_t object, const char* name, double value) const;
  void attribute(hid_t object, const char* name, std::span<const std::uint8_t> flags) const;
  void attribute(hid_t object, const char* name, std::span<const float> numbers) const;
  /// Nothing where there is no value.
  template <class T>
  void attribute(hid_t object, const char* name, const std::optional<T>& value) const {
    if (value) {
      attribute(object, name, *value);
    }
  }

  /// A contiguous dataset of `type`.
  void dataset(hid_t parent, const char* name, hid_t type, const std::vector<Index>& sizes,
               const void* values) const;
  /// The same in chunks of up to kMaxChunkTokens rows with their checksums (fletcher32), and with
  /// `sha256` as an attribute. At least one value.
  void checked_dataset(hid_t parent, const char* name, hid_t type, const std::vector<Index>& sizes,
                       const void* values, const std::string& sha256) const;
  /// An empty dataset in chunks that carry checksums, shuffled and gzipped where the level is not
  /// 0.
  Handle chunked(hid_t parent, const char* name, DType dtype, const std::vector<Index>& sizes,
                 const std::vector<Index>& chunk, int gzip_level) const;

  /// Closes an object of the file; `what`: for fail(). HDF5 may write now what it was given before.
  void close(Handle object, std::string_view what) const;

  /// Gives each group an attribute `members`, the names in it: a damaged name is no lost dataset.
  void write_members() const;

  /// Closes the file and renames it to PATH. All handles of its objects are closed before.
  void finish();

 private:
  Handle written(hid_t parent, const char* name, hid_t type, const std::vector<Index>& sizes,
                 const Handle& plist, const void* values) const;
  void put(hid_t object, const char* name, hid_t type, const void* value,
           std::optional<std::size_t> count = {}) const;

  std::string path_;     // symbolic links resolved
  std::string partial_;  // empty: finished
  Handle file_;
  mutable bool failed_ = false;
};

}  // namespace kvbench::h5
