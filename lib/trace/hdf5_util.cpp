#include "trace/hdf5_util.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>

#include "trace/schema.hpp"

namespace kvbench::h5 {

namespace {

// A corrupt size field must not turn into a huge allocation; no attribute of the schema comes near.
constexpr std::size_t kMaxAttributeBytes = std::size_t{1} << 20;

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

struct Attribute {
  const Place& where;
  const char* name;
  Handle id;
  Handle type;
  H5T_class_t kind = H5T_NO_CLASS;
  bool null = false;  // null dataspace
  hssize_t count = 0;
  int rank = 0;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    where.refuse("attribute {} {}", name, fmt::format(what, std::forward<Args>(args)...));
  }

  void read(hid_t memory, void* to) const {
    if (H5Aread(id, memory, to) < 0) {
      refuse("cannot be read ({})", last_error());
    }
  }

  // That it is one `noun`.
  void expect_one(bool right_kind, const char* article, const char* noun) const {
    if (!right_kind) {
      refuse("has the wrong type, expected {} {}", article, noun);
    }
    if (count != 1) {
      refuse("has {} elements, expected one {}", count, noun);
    }
  }
};

std::optional<Attribute> open_attribute(const Object& at, const char* name) {
  const htri_t exists = H5Aexists(at, name);
  if (exists < 0) {
    at.where.refuse("attributes cannot be read ({})", last_error());
  }
  if (exists == 0) {
    return std::nullopt;
  }
  Attribute a{at.where, name, Handle(H5Aopen(at, name, H5P_DEFAULT), H5Aclose), {}};
  a.type = Handle(a.id ? H5Aget_type(a.id) : -1, H5Tclose);
  const Handle space(a.type ? H5Aget_space(a.id) : -1, H5Sclose);
  if (!space) {
    a.refuse("cannot be read ({})", last_error());
  }
  a.kind = H5Tget_class(a.type);
  a.null = H5Sget_simple_extent_type(space) == H5S_NULL;
  a.count = a.null ? 0 : H5Sget_simple_extent_npoints(space);
  a.rank = a.null ? 0 : H5Sget_simple_extent_ndims(space);
  return a;
}

template <class T>
T read_integer(const Attribute& a, hid_t memory) {
  a.expect_one(a.kind == H5T_INTEGER, "an", "integer");
  T value = 0;
  a.read(memory, &value);
  return value;
}

std::vector<std::string> read_variable_strings(const Attribute& a) {
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(memory, H5T_VARIABLE);
  H5Tset_cset(memory, H5Tget_cset(a.type));
  std::vector<char*> texts(a.count, nullptr);
  a.read(memory, static_cast<void*>(texts.data()));
  std::vector<std::string> out;
  for (char* text : texts) {
    out.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
  return out;
}

std::vector<std::string> read_strings(const Attribute& a) {
  if (H5Tis_variable_str(a.type) > 0) {
    return read_variable_strings(a);
  }
  const std::size_t size = H5Tget_size(a.type);
  const auto count = static_cast<std::size_t>(a.count);
  if (size == 0 || size > kMaxAttributeBytes / count) {
    a.refuse("has {} times {} bytes, expected at most {}", count, size, kMaxAttributeBytes);
  }
  std::string all(size * count, '\0');
  a.read(a.type, all.data());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = all.substr(i * size, size);
    text.resize(std::min(text.find('\0'), text.size()));
    if (H5Tget_strpad(a.type) == H5T_STR_SPACEPAD) {
      text.resize(text.find_last_not_of(' ') + 1);
    }
    out.push_back(std::move(text));
  }
  return out;
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

Object open_object(const Object& parent, std::string_view name, H5I_type_t type, const char* kind) {
  Object out{{}, parent.where / name};
  if (!has_link(parent, name)) {
    out.where.refuse("{} is missing", kind);
  }
  out.id = Handle(H5Oopen(parent, std::string(name).c_str(), H5P_DEFAULT), H5Oclose);
  if (!out.id) {
    out.where.refuse("{} cannot be opened ({})", kind, last_error());
  }
  if (H5Iget_type(out) != type) {
    out.where.refuse("expected a {}, found another kind of object", kind);
  }
  return out;
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

Session::Session() : lock_(mutex()) {
  // HDF5 would close at exit what it cannot close after a failed write, and crash
  // (output_file.hpp).
  static const herr_t kept_from_exit = H5dont_atexit();
  static_cast<void>(kept_from_exit);  // it fails where somebody has called HDF5 before
  H5Eget_auto2(H5E_DEFAULT, &handler_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Session::~Session() {
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
  std::ranges::replace_if(
      line, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  return line;
}

Place Place::operator/(std::string_view member) const {
  return {file, fmt::format("{}{}{}", path, path.ends_with('/') ? "" : "/", member)};
}

Object open_root(hid_t file, const std::string& path) {
  return {Handle(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose), {path, "/"}};
}

Object open_group(const Object& parent, std::string_view name) {
  return open_object(parent, name, H5I_GROUP, "group");
}

Object open_dataset(const Object& parent, std::string_view name) {
  return open_object(parent, name, H5I_DATASET, "dataset");
}

bool has_link(hid_t parent, std::string_view name) {
  return H5Lexists(parent, std::string(name).c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::string> link_names(const Object& group) {
  std::vector<std::string> names;
  hsize_t at = 0;
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &at, collect_name, &names) < 0) {
    group.where.refuse("members cannot be listed ({})", last_error());
  }
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

Handle make_space(const std::vector<Index>& sizes) {
  const std::vector<hsize_t> dims(sizes.begin(), sizes.end());
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose};
}

std::vector<hsize_t> sizes_of(hid_t dataset) {
  const Handle space(H5Dget_space(dataset), H5Sclose);
  std::vector<hsize_t> sizes(space ? std::max(H5Sget_simple_extent_ndims(space), 0) : 0);
  if (!sizes.empty()) {
    H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  }
  return sizes;
}

std::optional<std::string> optional_string(const Object& at, const char* name) {
  const auto a = open_attribute(at, name);
  if (!a) {
    return std::nullopt;
  }
  if (a->null) {
    return std::string();
  }
  a->expect_one(a->kind == H5T_STRING, "a", "string");
  return read_strings(*a).front();
}

std::vector<std::string> required_strings(const Object& at, const char* name) {
  constexpr hssize_t kMax = 100000;
  const auto a = open_attribute(at, name);
  if (!a || a->null || a->kind != H5T_STRING || a->count < 1 || a->count > kMax) {
    at.where.refuse(
        "attribute {} is missing or of the wrong type, expected a string or an array of at most {}",
        name, kMax);
  }
  return read_strings(*a);
}

std::optional<std::int64_t> optional_int(const Object& at, const char* name) {
  const auto a = open_attribute(at, name);
  return a ? std::optional(read_integer<std::int64_t>(*a, H5T_NATIVE_INT64)) : std::nullopt;
}

std::optional<std::uint64_t> optional_unsigned(const Object& at, const char* name) {
  const auto a = open_attribute(at, name);
  if (!a) {
    return std::nullopt;
  }
  // HDF5 turns what the memory's type cannot hold into its nearest number, without a word.
  if (a->kind == H5T_INTEGER && H5Tget_sign(a->type) == H5T_SGN_NONE) {
    return read_integer<std::uint64_t>(*a, H5T_NATIVE_UINT64);
  }
  const auto value = read_integer<std::int64_t>(*a, H5T_NATIVE_INT64);
  if (value < 0) {
    at.where.refuse("{} is {}, expected at least 0", name, value);
  }
  return static_cast<std::uint64_t>(value);
}

std::optional<double> optional_float(const Object& at, const char* name) {
  const auto a = open_attribute(at, name);
  if (!a) {
    return std::nullopt;
  }
  a->expect_one(a->kind == H5T_FLOAT || a->kind == H5T_INTEGER, "a", "number");
  double value = 0;
  a->read(H5T_NATIVE_DOUBLE, &value);
  return value;
}

std::string required_string(const Object& at, const char* name) {
  auto value = optional_string(at, name);
  if (!value) {
    at.where.refuse("attribute {} is missing, expected a string", name);
  }
  return *std::move(value);
}

std::int64_t required_int(const Object& at, const char* name) {
  const auto value = optional_int(at, name);
  if (!value) {
    at.where.refuse("attribute {} is missing, expected an integer", name);
  }
  return *value;
}

std::vector<std::uint8_t> optional_flags(const Object& at, const char* name, Index size) {
  const auto a = open_attribute(at, name);
  if (!a || a->null) {
    return {};
  }
  // h5py stores booleans as an enumeration over 8-bit integers.
  const std::size_t width = H5Tget_size(a->type);
  const auto count = static_cast<std::size_t>(size);
  const bool integers = a->kind == H5T_INTEGER || a->kind == H5T_ENUM;
  if (integers && (a->rank > 1 || a->count != size)) {
    a->refuse("has rank {} and {} elements, expected {} in one row", a->rank, a->count, size);
  }
  if (!integers || width == 0 || width > 8 || count > kMaxAttributeBytes / width) {
    a->refuse("has the wrong type, expected an integer array");
  }
  // Only zero or not matters, so the raw bytes do, whatever width, sign and byte order they have.
  std::vector<std::uint8_t> raw(count * width);
  a->read(a->type, raw.data());
  std::vector<std::uint8_t> flags;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bytes = std::span(raw).subspan(i * width, width);
    flags.push_back(std::ranges::any_of(bytes, [](std::uint8_t b) { return b != 0; }) ? 1 : 0);
  }
  return flags;
}

}  // namespace kvbench::h5
