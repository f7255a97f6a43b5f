#include "trace/hdf5_util.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "trace/schema.hpp"

namespace kvbench::h5 {

namespace {

// A corrupt size field must not turn into a huge allocation; no attribute of the schema comes near.
constexpr std::size_t kMaxAttributeBytes = std::size_t{1} << 20;

struct Attribute {
  Handle id;
  Handle type;
  H5T_class_t kind = H5T_NO_CLASS;
  bool null = false;  // null dataspace
  hssize_t count = 0;
  int rank = 0;
};

std::optional<Attribute> open_attribute(hid_t object, const char* name, const Place& where) {
  const htri_t exists = H5Aexists(object, name);
  if (exists < 0) {
    where.refuse(fmt::format("attributes cannot be read ({})", last_error()));
  }
  if (exists == 0) {
    return std::nullopt;
  }
  Attribute a;
  a.id = Handle(H5Aopen(object, name, H5P_DEFAULT), H5Aclose);
  if (!a.id) {
    where.refuse(fmt::format("attribute {} cannot be read ({})", name, last_error()));
  }
  a.type = Handle(H5Aget_type(a.id.get()), H5Tclose);
  const Handle space(H5Aget_space(a.id.get()), H5Sclose);
  if (!a.type || !space) {
    where.refuse(fmt::format("attribute {} cannot be read ({})", name, last_error()));
  }
  a.kind = H5Tget_class(a.type.get());
  a.null = H5Sget_simple_extent_type(space.get()) == H5S_NULL;
  a.count = a.null ? 0 : H5Sget_simple_extent_npoints(space.get());
  a.rank = a.null ? 0 : H5Sget_simple_extent_ndims(space.get());
  return a;
}

void expect_one(const Attribute& a, const char* name, const char* expected, const Place& where) {
  if (a.count != 1) {
    where.refuse(fmt::format("attribute {} has {} elements, expected {}", name, a.count, expected));
  }
}

[[noreturn]] void refuse_kind(const char* name, const char* expected, const Place& where) {
  where.refuse(fmt::format("attribute {} has the wrong type, expected {}", name, expected));
}

[[noreturn]] void refuse_unreadable(const char* name, const Place& where) {
  where.refuse(fmt::format("attribute {} cannot be read ({})", name, last_error()));
}

template <class T>
T read_integer(const Attribute& a, hid_t memory, const char* name, const Place& where) {
  if (a.kind != H5T_INTEGER) {
    refuse_kind(name, "an integer", where);
  }
  expect_one(a, name, "one integer", where);
  T value = 0;
  if (H5Aread(a.id.get(), memory, &value) < 0) {
    refuse_unreadable(name, where);
  }
  return value;
}

std::vector<std::string> read_variable_strings(const Attribute& a, const char* name,
                                               const Place& where) {
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(memory.get(), H5T_VARIABLE);
  H5Tset_cset(memory.get(), H5Tget_cset(a.type.get()));
  std::vector<char*> texts(static_cast<std::size_t>(a.count), nullptr);
  if (H5Aread(a.id.get(), memory.get(), static_cast<void*>(texts.data())) < 0) {
    refuse_unreadable(name, where);
  }
  std::vector<std::string> out;
  for (char* text : texts) {
    out.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
  return out;
}

std::vector<std::string> read_fixed_strings(const Attribute& a, const char* name,
                                            const Place& where) {
  const std::size_t size = H5Tget_size(a.type.get());
  const auto count = static_cast<std::size_t>(a.count);
  if (size == 0 || size > kMaxAttributeBytes / count) {
    where.refuse(fmt::format("attribute {} has {} times {} bytes, expected at most {}", name, count,
                             size, kMaxAttributeBytes));
  }
  std::string all(size * count, '\0');
  if (H5Aread(a.id.get(), a.type.get(), all.data()) < 0) {
    refuse_unreadable(name, where);
  }
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = all.substr(i * size, size);
    text.resize(std::min(text.find('\0'), text.size()));
    if (H5Tget_strpad(a.type.get()) == H5T_STR_SPACEPAD) {
      text.resize(text.find_last_not_of(' ') + 1);
    }
    out.push_back(std::move(text));
  }
  return out;
}

std::vector<std::string> read_strings(const Attribute& a, const char* name, const Place& where) {
  return H5Tis_variable_str(a.type.get()) > 0 ? read_variable_strings(a, name, where)
                                              : read_fixed_strings(a, name, where);
}

// Link names are collected with room for a hostile count; a trace has far fewer.
constexpr std::size_t kMaxLinks = 1000000;

herr_t collect_name(hid_t /*group*/, const char* name, const H5L_info_t* /*info*/, void* out) {
  auto& names = *static_cast<std::vector<std::string>*>(out);
  // No exception may pass through HDF5.
  try {
    names.emplace_back(name);
  } catch (...) {
    return -1;
  }
  return names.size() > kMaxLinks ? -1 : 0;
}

herr_t keep_innermost(unsigned /*depth*/, const H5E_error2_t* error, void* out) {
  try {
    auto& text = *static_cast<std::string*>(out);
    if (text.empty() && error->desc != nullptr) {
      text = error->desc;
    }
  } catch (...) {
    return -1;
  }
  return 0;
}

Handle open_object(hid_t parent, std::string_view name, H5I_type_t type, const char* what,
                   const Place& where) {
  if (!has_link(parent, name)) {
    where.refuse(fmt::format("{} is missing", what));
  }
  Handle object(H5Oopen(parent, std::string(name).c_str(), H5P_DEFAULT), H5Oclose);
  if (!object) {
    where.refuse(fmt::format("{} cannot be opened ({})", what, last_error()));
  }
  if (H5Iget_type(object.get()) != type) {
    where.refuse(fmt::format("expected a {}, found another kind of object", what));
  }
  return object;
}

}  // namespace

Handle& Handle::operator=(Handle&& o) noexcept {
  if (this != &o) {
    reset();
    id_ = std::exchange(o.id_, -1);
    close_ = o.close_;
  }
  return *this;
}

bool Handle::reset() {
  const bool closed = id_ < 0 || close_ == nullptr || close_(id_) >= 0;
  id_ = -1;
  return closed;
}

Silence::Silence() {
  H5Eget_auto2(H5E_DEFAULT, &handler_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Silence::~Silence() {
  H5Eset_auto2(H5E_DEFAULT, handler_, data_);
}

std::string last_error() {
  std::string text;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &text);
  return text.empty() ? "HDF5 gives no reason" : one_line(text);
}

std::string one_line(std::string_view text) {
  constexpr std::size_t kMaxLength = 1000;
  std::string line(text.substr(0, kMaxLength));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      c = '?';
    }
  }
  return line;
}

Place Place::operator/(std::string_view member) const {
  const std::string separator = !path.empty() && path.back() == '/' ? "" : "/";
  return {file, path + separator + std::string(member)};
}

void Place::refuse(const std::string& what) const {
  throw InputError(one_line(fmt::format("{}: {}: {}", file, path, what)));
}

Handle open_group(hid_t parent, std::string_view name, const Place& where) {
  return open_object(parent, name, H5I_GROUP, "group", where);
}

Handle open_dataset(hid_t parent, std::string_view name, const Place& where) {
  return open_object(parent, name, H5I_DATASET, "dataset", where);
}

bool has_link(hid_t parent, std::string_view name) {
  return H5Lexists(parent, std::string(name).c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> link_names(hid_t group, const Place& where) {
  std::vector<std::string> names;
  hsize_t at = 0;
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &at, collect_name, &names) < 0) {
    where.refuse(fmt::format("members cannot be listed ({})", last_error()));
  }
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

std::optional<std::string> optional_string(hid_t object, const char* name, const Place& where) {
  const auto a = open_attribute(object, name, where);
  if (!a) {
    return std::nullopt;
  }
  if (a->null) {
    return std::string();
  }
  if (a->kind != H5T_STRING) {
    refuse_kind(name, "a string", where);
  }
  expect_one(*a, name, "one string", where);
  return read_strings(*a, name, where).front();
}

std::vector<std::string> required_strings(hid_t object, const char* name, const Place& where) {
  constexpr hssize_t kMost = 100000;
  const auto a = open_attribute(object, name, where);
  if (!a || a->null || a->kind != H5T_STRING || a->count < 1 || a->count > kMost) {
    where.refuse(
        fmt::format("attribute {} is missing or of the wrong type, expected a string or "
                    "an array of at most {}",
                    name, kMost));
  }
  return read_strings(*a, name, where);
}

std::optional<std::int64_t> optional_int(hid_t object, const char* name, const Place& where) {
  const auto a = open_attribute(object, name, where);
  if (!a) {
    return std::nullopt;
  }
  return read_integer<std::int64_t>(*a, H5T_NATIVE_INT64, name, where);
}

std::optional<std::uint64_t> optional_unsigned(hid_t object, const char* name, const Place& where) {
  const auto a = open_attribute(object, name, where);
  if (!a) {
    return std::nullopt;
  }
  // HDF5 turns what the memory's type cannot hold into its nearest number, without a word.
  if (a->kind == H5T_INTEGER && H5Tget_sign(a->type.get()) == H5T_SGN_NONE) {
    return read_integer<std::uint64_t>(*a, H5T_NATIVE_UINT64, name, where);
  }
  const auto value = read_integer<std::int64_t>(*a, H5T_NATIVE_INT64, name, where);
  if (value < 0) {
    where.refuse(fmt::format("{} is {}, expected at least 0", name, value));
  }
  return static_cast<std::uint64_t>(value);
}

std::optional<double> optional_float(hid_t object, const char* name, const Place& where) {
  const auto a = open_attribute(object, name, where);
  if (!a) {
    return std::nullopt;
  }
  if (a->kind != H5T_FLOAT && a->kind != H5T_INTEGER) {
    refuse_kind(name, "a number", where);
  }
  expect_one(*a, name, "one number", where);
  double value = 0;
  if (H5Aread(a->id.get(), H5T_NATIVE_DOUBLE, &value) < 0) {
    refuse_unreadable(name, where);
  }
  return value;
}

std::string required_string(hid_t object, const char* name, const Place& where) {
  auto value = optional_string(object, name, where);
  if (!value) {
    where.refuse(fmt::format("attribute {} is missing, expected a string", name));
  }
  return *std::move(value);
}

std::int64_t required_int(hid_t object, const char* name, const Place& where) {
  const auto value = optional_int(object, name, where);
  if (!value) {
    where.refuse(fmt::format("attribute {} is missing, expected an integer", name));
  }
  return *value;
}

std::vector<std::uint8_t> optional_flags(hid_t object, const char* name, Index size,
                                         const Place& where) {
  const auto a = open_attribute(object, name, where);
  if (!a || a->null) {
    return {};
  }
  // h5py stores booleans as an enumeration over 8-bit integers.
  if (a->kind != H5T_INTEGER && a->kind != H5T_ENUM) {
    refuse_kind(name, "an integer array", where);
  }
  if (a->rank > 1 || a->count != size) {
    where.refuse(fmt::format("attribute {} has rank {} and {} elements, expected {} in one row",
                             name, a->rank, a->count, size));
  }
  const std::size_t width = H5Tget_size(a->type.get());
  const auto count = static_cast<std::size_t>(size);
  if (width == 0 || width > 8 || count > kMaxAttributeBytes / width) {
    refuse_kind(name, "an integer array", where);
  }
  // Only zero or not matters, so the raw bytes do, whatever width, sign and byte order they have.
  std::vector<std::uint8_t> raw(count * width);
  if (H5Aread(a->id.get(), a->type.get(), raw.data()) < 0) {
    refuse_unreadable(name, where);
  }
  std::vector<std::uint8_t> flags(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto first = raw.begin() + static_cast<std::ptrdiff_t>(i * width);
    const bool set = std::any_of(first, first + static_cast<std::ptrdiff_t>(width),
                                 [](std::uint8_t b) { return b != 0; });
    flags[i] = set ? 1 : 0;
  }
  return flags;
}

}  // namespace kvbench::h5
