// Internal to lib/trace: an HDF5 file that gets its name only once it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/temporary_files.hpp"
#include "core/types.hpp"
#include "trace/hdf5_util.hpp"

namespace kvbench::h5 {

/// Most texts of an attribute, which holds 64 KiB; a string takes 16 bytes of it.
inline constexpr std::size_t kMaxTextsWritten = 4000;

/// The type of stored strings: variable length, UTF-8, which h5py reads as str.
Handle text_type();

/// The type of stored numbers, little-endian.
template <class T>
hid_t number_type() {
  static_assert(std::is_same_v<T, std::uint8_t> || sizeof(T) >= 4);
  if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 4 ? H5T_STD_I32LE : H5T_STD_I64LE;
  } else {
    return sizeof(T) == 1 ? H5T_STD_U8LE : H5T_STD_U64LE;
  }
}

/// A file being written to PATH.tmp. All members throw IoError; all but the destructor must be
/// called within a Session. Elements lie in memory as they are stored, little-endian.
///
/// After a failed write HDF5 crashes when it closes the file or exits. The file is then emptied,
/// loses its name, and stays open until the process ends.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  /// Without finish(), removes PATH.tmp and leaves PATH as it was.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// The open file; invalid after finish().
  const Handle& file() const { return file_; }
  const std::string& path() const { return path_; }
  /// "PATH.tmp: WHAT cannot be written (HDF5's reason)".
  [[noreturn]] void fail(std::string_view what) const;

  /// A new group, and missing ones above it.
  Handle group(hid_t parent, std::string_view path) const;

  void attribute(hid_t object, const char* name, std::string_view text) const;
  /// One string, or an array of several.
  void attribute(hid_t object, const char* name, std::span<const std::string> texts) const;
  /// A number, an array of numbers, or nothing if there is no value.
  template <class T>
  void attribute(hid_t object, const char* name, const T& x) const {
    if constexpr (std::is_arithmetic_v<T>) {
      put(object, name, number_type<T>(), &x);
    } else if constexpr (requires { x.has_value(); }) {
      if (x) {
        attribute(object, name, *x);
      }
    } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      attribute(object, name, std::string_view(x));
    } else if constexpr (std::is_convertible_v<const T&, std::span<const std::string>>) {
      attribute(object, name, std::span<const std::string>(x));
    } else {
      put(object, name, number_type<typename T::value_type>(), x.data(), x.size());
    }
  }

  /// A contiguous dataset of `type`.
  void dataset(hid_t parent, const char* name, hid_t type, const std::vector<Index>& sizes,
               const void* data) const;
  /// A dataset of at least one value in chunks of up to kMaxChunkTokens rows with their checksums
  /// (fletcher32), and with the attribute `sha256`.
  void checked_dataset(hid_t parent, const char* name, hid_t type, const std::vector<Index>& sizes,
                       const void* data, const std::string& sha256) const;
  /// An empty dataset in chunks with checksums, which are shuffled and gzipped unless the level is
  /// 0.
  Handle chunked(hid_t parent, const char* name, DType dtype, const std::vector<Index>& sizes,
                 const std::vector<Index>& chunk, int gzip_level) const;

  /// Closes an object of the file, which may write what HDF5 was given before. `what`: for fail().
  void close(Handle object, std::string_view what) const;

  /// Gives each group the attribute `members`, the names in it, so that a damaged name is noticed.
  void write_members() const;

  /// Closes the file and renames it to PATH. Handles of its objects must be closed.
  void finish();

 private:
  // A new dataset in chunks of `chunk`, or contiguous; `data` may be null.
  Handle create(hid_t parent, const char* name, hid_t type, const std::vector<Index>& sizes,
                const Handle& plist, const std::vector<Index>& chunk, const void* data) const;
  void put(hid_t object, const char* name, hid_t type, const void* value,
           std::optional<std::size_t> count = {}) const;

  std::string path_;  // symbolic links resolved
  Temporary partial_;
  Handle file_;
  mutable bool failed_ = false;
};

}  // namespace kvbench::h5
