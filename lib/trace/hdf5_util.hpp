// Internal to lib/trace: handles, attributes and one-line refusals on top of the HDF5 C API.
// Not part of the public interface; nothing outside lib/trace includes it.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench::h5 {

/// Owns one HDF5 identifier. Invalid (negative) identifiers are allowed and test false.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& o) noexcept : id_(o.id_), close_(o.close_) { o.id_ = -1; }
  Handle& operator=(Handle&& o) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; false if HDF5 reports a failure.
  bool reset();

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// While alive, HDF5 prints no error stacks in this thread.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  H5E_auto2_t handler_ = nullptr;
  void* data_ = nullptr;
};

/// What HDF5 last complained about, its innermost message, or "" if nothing.
std::string last_error();

/// `text` with control characters replaced, so that a message stays one line, and cut if long.
std::string one_line(std::string_view text);

/// A place in a file; `refuse` is how every refusal of a trace is raised.
struct Place {
  std::string file;
  std::string path;  ///< inside the file, "/" for the root

  Place operator/(std::string_view member) const;
  /// Throws InputError "FILE: PATH: WHAT", made one line.
  [[noreturn]] void refuse(const std::string& what) const;
};

/// An object opened by name below `parent`; refuses if missing or not of the type.
Handle open_group(hid_t parent, std::string_view name, const Place& where);
Handle open_dataset(hid_t parent, std::string_view name, const Place& where);

/// True if a link of that name exists.
bool has_link(hid_t parent, std::string_view name);

/// Names of all links of a group, in the order that natural_less gives.
std::vector<std::string> link_names(hid_t group, const Place& where);

/// Attributes of `object`. The `optional_` ones give nothing where the attribute is absent; all
/// refuse wrong types and shapes. Scalars may be stored as one-element arrays, strings with fixed
/// or variable length, numbers in any width; a null dataspace (h5py.Empty) is an empty string.
std::optional<std::string> optional_string(hid_t object, const char* name, const Place& where);
std::optional<std::int64_t> optional_int(hid_t object, const char* name, const Place& where);
/// An integer of at least 0; refuses others. Unlike optional_int it holds all of 64 bits.
std::optional<std::uint64_t> optional_unsigned(hid_t object, const char* name, const Place& where);
std::optional<double> optional_float(hid_t object, const char* name, const Place& where);
std::string required_string(hid_t object, const char* name, const Place& where);
/// One string or an array of them, at least one.
std::vector<std::string> required_strings(hid_t object, const char* name, const Place& where);
std::int64_t required_int(hid_t object, const char* name, const Place& where);

/// Flags of an integer or boolean array attribute, [size], as 0 and 1; empty if absent.
std::vector<std::uint8_t> optional_flags(hid_t object, const char* name, Index size,
                                         const Place& where);

}  // namespace kvbench::h5
