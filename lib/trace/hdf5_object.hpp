// Internal to lib/trace: groups, datasets and attributes of a surveyed file, and the refusals of
// those that are missing or of the wrong kind.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "trace/refuse.hpp"
#include "trace/survey_data.hpp"

namespace kvbench::h5 {

/// A group or dataset of a survey, which outlives it, and where it is.
struct Object {
  const Survey* survey = nullptr;
  const Node* node = nullptr;
  Place where = {};
};

/// The root group of the file `path`.
Object open_root(const Survey& survey, const std::string& path);
/// The object `name` of `parent`; refuses if missing or not of the kind, and links that lead out of
/// the file or to a group that holds them.
Object open_group(const Object& parent, std::string_view name);
Object open_dataset(const Object& parent, std::string_view name);

/// True if a link of that name exists, among those that were surveyed.
bool has_link(const Object& parent, std::string_view name);

/// Names of all links of a group, in the order that natural_less gives.
std::vector<std::string> link_names(const Object& group);

/// Refuses a group whose attribute `members` names what is not there. `known`: the names that a
/// reader looks for, and asks of no others; empty: all.
void check_members(const Object& group, std::initializer_list<std::string_view> known = {});

/// Attributes. The `optional_` ones give nothing where the attribute is absent; all refuse wrong
/// types and shapes. Scalars may be stored as one-element arrays, strings with fixed or variable
/// length, numbers in any width; a null dataspace (h5py.Empty) is an empty string.
std::optional<std::string> optional_string(const Object& at, const char* name);
std::optional<std::int64_t> optional_int(const Object& at, const char* name);
/// An integer of at least 0; refuses others. Unlike optional_int it holds all of 64 bits.
std::optional<std::uint64_t> optional_unsigned(const Object& at, const char* name);
std::optional<double> optional_float(const Object& at, const char* name);
std::string required_string(const Object& at, const char* name);
/// One string or an array of them, at least one; in the survey. Null: there is no such attribute.
const std::vector<std::string>* optional_strings(const Object& at, const char* name);
std::vector<std::string> required_strings(const Object& at, const char* name);
std::int64_t required_int(const Object& at, const char* name);

/// Numbers of an array attribute, [size], finite in float32; empty if absent.
std::vector<float> optional_floats(const Object& at, const char* name, Index size);

/// Flags of an integer or boolean array attribute, [size], as 0 and 1; empty if absent.
std::vector<std::uint8_t> optional_flags(const Object& at, const char* name, Index size);

}  // namespace kvbench::h5
