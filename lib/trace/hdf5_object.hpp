// Internal to lib/trace: groups, datasets and attributes of an open file (hdf5_file.hpp). Each
// function throws InputError if what it looks for is missing, cannot be read or is of the wrong
// kind.
#pragma once

#include <cstdint>
#include <initializer_list>
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
std::optional<std::int64_t> optional_int(const Hdf5Object& at, const char* name);
/// An integer of at least 0. Unlike optional_int it holds all of 64 bits.
std::optional<std::uint64_t> optional_unsigned(const Hdf5Object& at, const char* name);
std::optional<double> optional_float(const Hdf5Object& at, const char* name);
std::string required_string(const Hdf5Object& at, const char* name);
/// One string or an array of at least one; empty if the attribute is absent.
std::vector<std::string> optional_strings(const Hdf5Object& at, const char* name);
std::vector<std::string> required_strings(const Hdf5Object& at, const char* name);
std::int64_t required_int(const Hdf5Object& at, const char* name);

/// Numbers of an array attribute, [size], finite in float32; empty if absent.
std::vector<float> optional_floats(const Hdf5Object& at, const char* name, Index size);

/// Flags of an integer or boolean array attribute, [size], as 0 and 1; empty if absent.
std::vector<std::uint8_t> optional_flags(const Hdf5Object& at, const char* name, Index size);

}  // namespace kvbench::h5
