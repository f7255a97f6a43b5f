// Internal to lib/trace: groups, datasets and attributes of an open file (hdf5_file.hpp). Each
// function throws InputError if what it looks for is missing, cannot be read or is of the wrong
// kind.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "trace/hdf5_file.hpp"
#include "trace/refuse.hpp"

namespace kvbench::h5 {

/// An open group or dataset, and where it is. The file outlives it.
struct Hdf5Object {
  Hdf5File* file = nullptr;
  Handle id = {};
  Place where = {};
  haddr_t address = HADDR_UNDEF;  ///< of its header; the root has none here
};

/// The root group of the file, which messages call `path`.
Hdf5Object open_root(Hdf5File& file, const std::string& path);
/// The object `name` of `parent`. Links out of the file are rejected.
Hdf5Object open_group(const Hdf5Object& parent, std::string_view name);
Hdf5Object open_dataset(const Hdf5Object& parent, std::string_view name);

/// Whether a link of that name exists.
bool has_link(const Hdf5Object& parent, std::string_view name);

/// Names of all links of a group, ordered by natural_less, each once.
std::vector<std::string> link_names(const Hdf5Object& group);

/// Throws InputError if the group's attribute `members` names a missing link. Checks only the names
/// in `known`, or all if it is empty.
void check_members(const Hdf5Object& group, std::initializer_list<std::string_view> known = {});

/// Attributes; absent ones are empty. Scalars may be stored as one-element arrays, strings with
/// fixed or variable length, numbers in any width. A null dataspace (h5py.Empty) is an empty
/// string.
std::optional<std::string> optional_string(const Hdf5Object& at, const char* name);
std::string required_string(const Hdf5Object& at, const char* name);
/// One string or an array of at least one; empty if the attribute is absent.
std::vector<std::string> optional_strings(const Hdf5Object& at, const char* name);
/// The value of a string attribute, which must be one of `choices`.
std::string one_of(const Hdf5Object& at, const char* name, std::string value,
                   std::initializer_list<std::string_view> choices);

/// A number from `low` to `high`, never NaN; messages end with `expected`. `T`: std::int64_t,
/// std::uint64_t or double.
template <class T>
std::optional<T> optional_number(const Hdf5Object& at, const char* name,
                                 T low = std::numeric_limits<T>::lowest(),
                                 T high = std::numeric_limits<T>::max(),
                                 std::string_view expected = "a number");
std::int64_t required_int(const Hdf5Object& at, const char* name, std::int64_t low,
                          std::int64_t high, std::string_view expected);
/// Throws InputError unless the root's attributes `format` and `version` are these.
void check_format(const Hdf5Object& root, std::string_view format, std::int64_t version);

/// Numbers of an array attribute, [size], finite in float32; empty if absent.
std::vector<float> optional_floats(const Hdf5Object& at, const char* name, Index size);

/// Flags of an integer or boolean array attribute, [size], as 0 and 1; empty if absent.
std::vector<std::uint8_t> optional_flags(const Hdf5Object& at, const char* name, Index size);

}  // namespace kvbench::h5
