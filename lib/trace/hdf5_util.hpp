// Internal to lib/trace: handles, groups, attributes and one-line refusals on top of the HDF5 C
// API. Nothing outside lib/trace includes it.
#pragma once

#include <fmt/format.h>
#include <hdf5.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/types.hpp"

namespace kvbench::h5 {

/// Owns one HDF5 identifier and stands for it where HDF5 wants one. Invalid (negative) identifiers
/// are allowed and test false.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  Handle& operator=(Handle&& o) noexcept;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; false if HDF5 reports a failure.
  bool reset();
  /// Forgets it without closing.
  void release() { id_ = -1; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// Held by every public function of lib/trace that calls HDF5: threads wait for each other, as HDF5
/// is not re-entrant, and it prints no error stacks. Never held by who calls such a function.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t handler_ = nullptr;
  void* data_ = nullptr;
};

/// What HDF5 last complained about, its innermost message.
std::string last_error();

/// `text` with control characters replaced, so that a message stays one line, and cut if long.
std::string one_line(std::string_view text);

/// Throws an E with a message of one line.
template <class E, class... Args>
[[noreturn]] void raise(fmt::format_string<Args...> what, Args&&... args) {
  throw E(one_line(fmt::format(what, std::forward<Args>(args)...)));
}

/// A place in a file; `refuse` is how every refusal of a file's contents is raised.
struct Place {
  std::string file;
  std::string path;  ///< inside the file, "/" for the root

  Place operator/(std::string_view member) const;
  /// Throws InputError "FILE: PATH: WHAT", made one line.
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    raise<InputError>("{}: {}: {}", file, path, fmt::format(what, std::forward<Args>(args)...));
  }
};

/// An open group or dataset, and where it is.
struct Object {
  Handle id;
  Place where;

  operator hid_t() const { return id; }  // NOLINT(google-explicit-constructor)
};

/// The root group of an open file.
Object open_root(hid_t file, const std::string& path);
/// The object `name`, a link or a path of them, below `parent`; refuses if missing or not of the
/// kind.
Object open_group(const Object& parent, std::string_view name);
Object open_dataset(const Object& parent, std::string_view name);

/// True if a link of that name exists.
bool has_link(hid_t parent, std::string_view name);

/// Names of all links of a group, in the order that natural_less gives.
std::vector<std::string> link_names(const Object& group);

/// A dataspace of these sizes.
Handle make_space(const std::vector<Index>& sizes);
/// Sizes of a dataset; of a scalar none.
std::vector<hsize_t> sizes_of(hid_t dataset);

/// Attributes. The `optional_` ones give nothing where the attribute is absent; all refuse wrong
/// types and shapes. Scalars may be stored as one-element arrays, strings with fixed or variable
/// length, numbers in any width; a null dataspace (h5py.Empty) is an empty string.
std::optional<std::string> optional_string(const Object& at, const char* name);
std::optional<std::int64_t> optional_int(const Object& at, const char* name);
/// An integer of at least 0; refuses others. Unlike optional_int it holds all of 64 bits.
std::optional<std::uint64_t> optional_unsigned(const Object& at, const char* name);
std::optional<double> optional_float(const Object& at, const char* name);
std::string required_string(const Object& at, const char* name);
/// One string or an array of them, at least one.
std::vector<std::string> required_strings(const Object& at, const char* name);
std::int64_t required_int(const Object& at, const char* name);

/// Flags of an integer or boolean array attribute, [size], as 0 and 1; empty if absent.
std::vector<std::uint8_t> optional_flags(const Object& at, const char* name, Index size);

}  // namespace kvbench::h5
