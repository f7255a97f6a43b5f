#include "trace/hdf5_object.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "trace/schema.hpp"

namespace kvbench::h5 {

namespace {

// Bounds allocations of corrupt sizes; no attribute of the formats comes near.
constexpr std::size_t kMaxAttributeBytes = std::size_t{1} << 20;
constexpr std::uint64_t kMaxTexts = 100000;
// A trace has far fewer links in a group.
constexpr std::size_t kMaxLinks = 1000000;

// HDF5 1.12 gave the old name to another struct.
#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
using LinkInfo = H5L_info2_t;
#else
using ObjectInfo = H5O_info_t;
using LinkInfo = H5L_info_t;
#endif

// An attribute that is there.
struct Attribute {
  const char* name = "";
  Handle id;
  Handle type;
  H5T_class_t kind = H5T_NO_CLASS;  // none: numbers of more than 8 bytes
  bool null = false;                // of a null dataspace
  int rank = 0;
  std::uint64_t count = 0;  // elements

  bool is_integer() const { return kind == H5T_INTEGER; }
  bool is_number() const { return kind == H5T_INTEGER || kind == H5T_FLOAT; }
};

template <class... Args>
[[noreturn]] void refuse(const Hdf5Object& at, const Attribute& a, fmt::format_string<Args...> what,
                         Args&&... args) {
  at.where.refuse("attribute {} {}", a.name, fmt::format(what, std::forward<Args>(args)...));
}

void expect(const Hdf5Object& at, const Attribute& a, bool good) {
  if (!good) {
    refuse(at, a, "cannot be read ({})", last_error());
  }
}

std::optional<Attribute> find(const Hdf5Object& at, const char* name) {
  Attribute a;
  a.name = name;
  const htri_t exists = H5Aexists(at.id, name);
  expect(at, a, exists >= 0);
  if (exists == 0) {
    return std::nullopt;
  }
  a.id = Handle(H5Aopen(at.id, name, H5P_DEFAULT), H5Aclose);
  expect(at, a, static_cast<bool>(a.id));
  a.type = Handle(H5Aget_type(a.id), H5Tclose);
  expect(at, a, static_cast<bool>(a.type));
  const Handle space(H5Aget_space(a.id), H5Sclose);
  expect(at, a, static_cast<bool>(space));
  a.kind = H5Tget_class(a.type);
  if (a.kind != H5T_STRING && a.kind != H5T_FLOAT && H5Tget_size(a.type) > 8) {
    a.kind = H5T_NO_CLASS;
  }
  a.null = H5Sget_simple_extent_type(space) == H5S_NULL;
  if (!a.null) {
    a.count =
        static_cast<std::uint64_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0));
    a.rank = std::max(H5Sget_simple_extent_ndims(space), 0);
  }
  return a;
}

// The numbers of an attribute as T; HDF5 clamps those beyond it.
template <class T>
std::vector<T> numbers(const Hdf5Object& at, const Attribute& a) {
  if (a.count > kMaxAttributeBytes / sizeof(T)) {
    refuse(at, a, "has {} elements, expected fewer", a.count);
  }
  const hid_t memory = std::is_same_v<T, double> ? H5T_NATIVE_DOUBLE
                       : std::is_signed_v<T>     ? H5T_NATIVE_INT64
                                                 : H5T_NATIVE_UINT64;
  std::vector<T> out(a.count);
  expect(at, a, out.empty() || H5Aread(a.id, memory, out.data()) >= 0);
  return out;
}

std::vector<std::string> variable_texts(const Hdf5Object& at, const Attribute& a) {
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(memory, H5T_VARIABLE);
  H5Tset_cset(memory, H5Tget_cset(a.type));
  std::vector<char*> texts(a.count, nullptr);
  expect(at, a, H5Aread(a.id, memory, static_cast<void*>(texts.data())) >= 0);
  std::vector<std::string> out;
  for (char* text : texts) {
    out.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
  return out;
}

std::vector<std::string> texts(const Hdf5Object& at, const Attribute& a) {
  if (H5Tis_variable_str(a.type) > 0) {
    return variable_texts(at, a);
  }
  const std::size_t size = H5Tget_size(a.type);
  if (size == 0 || a.count > kMaxAttributeBytes / size) {
    refuse(at, a, "cannot be read ({} times {} bytes, expected at most {})", a.count, size,
           kMaxAttributeBytes);
  }
  // HDF5 converts all paddings to this one.
  const Handle terminated(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(terminated, size + 1);
  H5Tset_cset(terminated, H5Tget_cset(a.type));
  std::string all((size + 1) * a.count, '\0');
  expect(at, a, H5Aread(a.id, terminated, all.data()) >= 0);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < a.count; ++i) {
    out.emplace_back(&all[i * (size + 1)]);
  }
  return out;
}

void expect_one(const Hdf5Object& at, const Attribute& a, bool right_kind, const char* article,
                const char* noun) {
  if (!right_kind) {
    refuse(at, a, "has the wrong type, expected {} {}", article, noun);
  }
  if (a.count != 1) {
    refuse(at, a, "has {} elements, expected one {}", a.count, noun);
  }
}

// Throws unless the attribute has `size` numbers in one row.
void expect_row(const Hdf5Object& at, const Attribute& a, Index size) {
  if (a.rank > 1 || std::cmp_not_equal(a.count, size)) {
    refuse(at, a, "has rank {} and {} elements, expected {} in one row", a.rank, a.count, size);
  }
}

template <class T>
T required(const Hdf5Object& at, const char* name, std::optional<T>&& value, const char* what) {
  if (!value) {
    at.where.refuse("attribute {} is missing, expected {}", name, what);
  }
  return *std::move(value);
}

Hdf5Object open_object(const Hdf5Object& parent, std::string_view name, H5O_type_t kind,
                       const char* noun) {
  Hdf5Object out{parent.file, {}, parent.where / name};
  begin_step();
  if (!parent.file->count_object()) {
    out.where.refuse("is reached after too many objects, expected fewer in a file");
  }
  const std::string link(name);
  LinkInfo about_link{};
  const bool known = H5Lget_info(parent.id, link.c_str(), &about_link, H5P_DEFAULT) >= 0;
  if (!known && !has_link(parent, name)) {
    out.where.refuse("{} is missing", noun);
  }
  if (known && about_link.type != H5L_TYPE_HARD && about_link.type != H5L_TYPE_SOFT) {
    out.where.refuse("is a link out of the file, expected a {} in it", noun);
  }
  if (known) {
    out.id = Handle(H5Oopen(parent.id, link.c_str(), H5P_DEFAULT), H5Oclose);
  }
  if (known && !out.id && about_link.type == H5L_TYPE_SOFT) {
    out.where.refuse("is a soft link that leads to nothing in the file, expected a {} ({})", noun,
                     last_error());
  }
  ObjectInfo about{};
  if (!out.id || H5Oget_info2(out.id, &about, H5O_INFO_BASIC) < 0) {
    out.where.refuse("{} cannot be opened ({})", noun, last_error());
  }
  if (about.type != kind) {
    out.where.refuse("expected a {}, found another kind of object", noun);
  }
  out.address = about.addr;
  return out;
}

herr_t collect_link(hid_t /*group*/, const char* name, const LinkInfo* /*info*/, void* out) {
  // No exception may pass through HDF5.
  try {
    auto& names = *static_cast<std::vector<std::string>*>(out);
    names.emplace_back(name);
    return names.size() > kMaxLinks ? -1 : 0;
  } catch (...) {
    return -1;
  }
}

}  // namespace

Hdf5Object open_root(Hdf5File& file, const std::string& path) {
  Hdf5Object out{&file, Handle(H5Gopen2(file.id(), "/", H5P_DEFAULT), H5Gclose), {path, "/"}};
  if (!out.id) {
    out.where.refuse("group cannot be opened ({}), expected a complete HDF5 file", last_error());
  }
  return out;
}

Hdf5Object open_group(const Hdf5Object& parent, std::string_view name) {
  return open_object(parent, name, H5O_TYPE_GROUP, "group");
}

Hdf5Object open_dataset(const Hdf5Object& parent, std::string_view name) {
  return open_object(parent, name, H5O_TYPE_DATASET, "dataset");
}

bool has_link(const Hdf5Object& parent, std::string_view name) {
  return has_link(parent.id, name);
}

std::vector<std::string> link_names(const Hdf5Object& group) {
  std::vector<std::string> names;
  hsize_t at = 0;
  if (H5Literate(group.id, H5_INDEX_NAME, H5_ITER_NATIVE, &at, collect_link, &names) < 0) {
    group.where.refuse("the members of the group cannot be listed ({})", last_error());
  }
  std::ranges::sort(names, natural_less);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void check_members(const Hdf5Object& group, std::initializer_list<std::string_view> known) {
  for (const std::string& name : optional_strings(group, schema::kMembers)) {
    const bool looked_for = known.size() == 0 || std::ranges::count(known, name) > 0;
    if (looked_for && !has_link(group, name)) {
      (group.where / name)
          .refuse("is missing, expected what attribute {} of the group names", schema::kMembers);
    }
  }
}

std::optional<std::string> optional_string(const Hdf5Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  if (a->null) {
    return "";
  }
  expect_one(at, *a, a->kind == H5T_STRING, "a", "string");
  return texts(at, *a).front();
}

std::vector<std::string> optional_strings(const Hdf5Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return {};
  }
  if (a->kind != H5T_STRING || a->count == 0 || a->count > kMaxTexts) {
    refuse(at, *a, "has the wrong type, expected a string or an array of at most {}", kMaxTexts);
  }
  return texts(at, *a);
}

std::vector<std::string> required_strings(const Hdf5Object& at, const char* name) {
  std::vector<std::string> found = optional_strings(at, name);
  if (found.empty()) {
    at.where.refuse("attribute {} is missing, expected a string or an array of them", name);
  }
  return found;
}

std::optional<std::int64_t> optional_int(const Hdf5Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  expect_one(at, *a, a->is_integer(), "an", "integer");
  return numbers<std::int64_t>(at, *a).front();
}

std::optional<std::uint64_t> optional_unsigned(const Hdf5Object& at, const char* name) {
  const auto value = optional_int(at, name);
  if (value && *value < 0) {
    at.where.refuse("{} is {}, expected at least 0", name, *value);
  }
  return value ? std::optional(numbers<std::uint64_t>(at, *find(at, name)).front()) : std::nullopt;
}

std::optional<double> optional_float(const Hdf5Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  expect_one(at, *a, a->is_number(), "a", "number");
  return numbers<double>(at, *a).front();
}

std::string required_string(const Hdf5Object& at, const char* name) {
  return required(at, name, optional_string(at, name), "a string");
}

std::int64_t required_int(const Hdf5Object& at, const char* name) {
  return required(at, name, optional_int(at, name), "an integer");
}

std::vector<std::uint8_t> optional_flags(const Hdf5Object& at, const char* name, Index size) {
  const auto a = find(at, name);
  if (!a || a->null) {
    return {};
  }
  // h5py stores booleans as an enumeration over 8-bit integers.
  if (!a->is_integer() && a->kind != H5T_ENUM) {
    refuse(at, *a, "has the wrong type, expected an integer array");
  }
  expect_row(at, *a, size);
  std::vector<std::uint8_t> flags;
  for (const std::int64_t x : numbers<std::int64_t>(at, *a)) {
    flags.push_back(x != 0 ? 1 : 0);
  }
  return flags;
}

std::vector<float> optional_floats(const Hdf5Object& at, const char* name, Index size) {
  const auto a = find(at, name);
  if (!a || a->null) {
    return {};
  }
  if (!a->is_number()) {
    refuse(at, *a, "has the wrong type, expected an array of numbers");
  }
  expect_row(at, *a, size);
  std::vector<float> out;
  for (const double x : numbers<double>(at, *a)) {
    if (!std::isfinite(static_cast<float>(x))) {
      refuse(at, *a, "holds {} in place {}, expected finite float32 numbers", x, out.size());
    }
    out.push_back(static_cast<float>(x));
  }
  return out;
}

}  // namespace kvbench::h5
