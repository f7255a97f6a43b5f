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

// HDF5 1.12 gave the old name to another struct.
#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
#else
using ObjectInfo = H5O_info_t;
#endif

// An attribute that is there.
struct Attribute {
  const Place* where = nullptr;  // of its object
  const char* name = "";
  Handle id = {};
  Handle type = {};
  H5T_class_t kind = H5T_NO_CLASS;  // none: numbers of more than 8 bytes
  bool null = false;                // of a null dataspace
  int rank = 0;
  std::uint64_t count = 0;  // elements

  bool is_integer() const { return kind == H5T_INTEGER; }
  bool is_number() const { return kind == H5T_INTEGER || kind == H5T_FLOAT; }

  template <class... Args>
  void expect(bool good, fmt::format_string<Args...> what, Args&&... args) const {
    if (!good) {
      where->refuse("attribute {} {}", name, fmt::format(what, std::forward<Args>(args)...));
    }
  }
  void expect_read(bool good) const {
    if (!good) {
      expect(false, "cannot be read ({})", last_error());
    }
  }
  void expect_one(bool right_kind, const char* article, const char* noun) const {
    expect(right_kind, "has the wrong type, expected {} {}", article, noun);
    expect(count == 1, "has {} elements, expected one {}", count, noun);
  }
};

std::optional<Attribute> find(const Hdf5Object& at, const char* name) {
  Attribute a{&at.where, name};
  const htri_t exists = H5Aexists(at.id, name);
  a.expect_read(exists >= 0);
  if (exists == 0) {
    return std::nullopt;
  }
  a.id = Handle(H5Aopen(at.id, name, H5P_DEFAULT), H5Aclose);
  a.expect_read(static_cast<bool>(a.id));
  a.type = Handle(H5Aget_type(a.id), H5Tclose);
  a.expect_read(static_cast<bool>(a.type));
  const Handle space(H5Aget_space(a.id), H5Sclose);
  a.expect_read(static_cast<bool>(space));
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
std::vector<T> numbers(const Attribute& a) {
  a.expect(a.count <= kMaxAttributeBytes / sizeof(T), "has {} elements, expected fewer", a.count);
  const hid_t memory = std::is_same_v<T, double> ? H5T_NATIVE_DOUBLE
                       : std::is_signed_v<T>     ? H5T_NATIVE_INT64
                                                 : H5T_NATIVE_UINT64;
  std::vector<T> out(a.count);
  a.expect_read(out.empty() || H5Aread(a.id, memory, out.data()) >= 0);
  return out;
}

// The numbers of an attribute that must have `size` of them in one row; empty if it is null.
std::vector<double> row(const Attribute& a, Index size, bool right_kind, const char* expected) {
  if (a.null) {
    return {};
  }
  a.expect(right_kind, "has the wrong type, expected {}", expected);
  a.expect(a.rank <= 1 && std::cmp_equal(a.count, size),
           "has rank {} and {} elements, expected {} in one row", a.rank, a.count, size);
  return numbers<double>(a);
}

std::vector<std::string> variable_texts(const Attribute& a) {
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(memory, H5T_VARIABLE);
  H5Tset_cset(memory, H5Tget_cset(a.type));
  std::vector<char*> texts(a.count, nullptr);
  a.expect_read(H5Aread(a.id, memory, static_cast<void*>(texts.data())) >= 0);
  std::vector<std::string> out;
  for (char* text : texts) {
    out.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
  return out;
}

std::vector<std::string> texts(const Attribute& a) {
  if (H5Tis_variable_str(a.type) > 0) {
    return variable_texts(a);
  }
  const std::size_t size = H5Tget_size(a.type);
  a.expect(size > 0 && a.count <= kMaxAttributeBytes / size,
           "cannot be read ({} times {} bytes, expected at most {})", a.count, size,
           kMaxAttributeBytes);
  // HDF5 converts all paddings to this one.
  const Handle terminated(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(terminated, size + 1);
  H5Tset_cset(terminated, H5Tget_cset(a.type));
  std::string all((size + 1) * a.count, '\0');
  a.expect_read(H5Aread(a.id, terminated, all.data()) >= 0);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < a.count; ++i) {
    out.emplace_back(&all[i * (size + 1)]);
  }
  return out;
}

template <class T>
T required(const Hdf5Object& at, const char* name, std::optional<T>&& value, const char* what) {
  at.where.expect(value.has_value(), "attribute {} is missing, expected {}", name, what);
  return *std::move(value);
}

Hdf5Object open_object(const Hdf5Object& parent, std::string_view name, H5O_type_t kind,
                       const char* noun) {
  Hdf5Object out{parent.file, {}, parent.where / name};
  begin_step();
  out.where.expect(parent.file->count_object(),
                   "is reached after too many objects, expected fewer in a file");
  const std::string link(name);
  LinkInfo about_link{};
  const bool known = H5Lget_info(parent.id, link.c_str(), &about_link, H5P_DEFAULT) >= 0;
  out.where.expect(known || has_link(parent, name), "{} is missing", noun);
  out.where.expect(!known || about_link.type == H5L_TYPE_HARD || about_link.type == H5L_TYPE_SOFT,
                   "is a link out of the file, expected a {} in it", noun);
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
  out.where.expect(about.type == kind, "expected a {}, found another kind of object", noun);
  out.address = about.addr;
  return out;
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
  auto names = link_names(group.id);
  if (!names) {
    group.where.refuse("the members of the group cannot be listed ({})", last_error());
  }
  std::ranges::sort(*names, natural_less);
  names->erase(std::unique(names->begin(), names->end()), names->end());
  return *std::move(names);
}

void check_members(const Hdf5Object& group, std::initializer_list<std::string_view> known) {
  for (const std::string& name : optional_strings(group, schema::kMembers)) {
    const bool looked_for = known.size() == 0 || std::ranges::count(known, name) > 0;
    (group.where / name)
        .expect(!looked_for || has_link(group, name),
                "is missing, expected what attribute {} of the group names", schema::kMembers);
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
  a->expect_one(a->kind == H5T_STRING, "a", "string");
  return texts(*a).front();
}

std::string required_string(const Hdf5Object& at, const char* name) {
  return required(at, name, optional_string(at, name), "a string");
}

std::vector<std::string> optional_strings(const Hdf5Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return {};
  }
  a->expect(a->kind == H5T_STRING && a->count > 0 && a->count <= kMaxTexts,
            "has the wrong type, expected a string or an array of at most {}", kMaxTexts);
  return texts(*a);
}

std::string one_of(const Hdf5Object& at, const char* name, std::string value,
                   std::initializer_list<std::string_view> choices) {
  at.where.expect(std::ranges::count(choices, value) > 0, "attribute {} is \"{}\", expected {}",
                  name, value, fmt::join(choices, ", "));
  return value;
}

template <class T>
std::optional<T> optional_number(const Hdf5Object& at, const char* name, T low, T high,
                                 std::string_view expected) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  if constexpr (std::is_floating_point_v<T>) {
    a->expect_one(a->is_number(), "a", "number");
  } else {
    a->expect_one(a->is_integer(), "an", "integer");
  }
  if constexpr (std::is_unsigned_v<T>) {
    const auto negative = std::min<std::int64_t>(0, numbers<std::int64_t>(*a).front());
    a->expect(negative == 0, "is {}, expected at least 0", negative);
  }
  const T value = numbers<T>(*a).front();
  a->expect(low <= value && value <= high, "is {}, expected {}", value, expected);
  return value;
}

template std::optional<std::int64_t> optional_number(const Hdf5Object&, const char*, std::int64_t,
                                                     std::int64_t, std::string_view);
template std::optional<std::uint64_t> optional_number(const Hdf5Object&, const char*, std::uint64_t,
                                                      std::uint64_t, std::string_view);
template std::optional<double> optional_number(const Hdf5Object&, const char*, double, double,
                                               std::string_view);

std::int64_t required_int(const Hdf5Object& at, const char* name, std::int64_t low,
                          std::int64_t high, std::string_view expected) {
  return required(at, name, optional_number(at, name, low, high, expected), "an integer");
}

void check_format(const Hdf5Object& root, std::string_view format, std::int64_t version) {
  const std::string found = required_string(root, "format");
  root.where.expect(found == format, "format is \"{}\", expected \"{}\"", found, format);
  required_int(root, "version", version, version, std::to_string(version));
}

std::vector<std::uint8_t> optional_flags(const Hdf5Object& at, const char* name, Index size) {
  std::vector<std::uint8_t> flags;
  if (const auto a = find(at, name)) {
    // h5py stores booleans as an enumeration over 8-bit integers.
    const bool right_kind = a->is_integer() || a->kind == H5T_ENUM;
    for (const double x : row(*a, size, right_kind, "an integer array")) {
      flags.push_back(x != 0 ? 1 : 0);
    }
  }
  return flags;
}

std::vector<float> optional_floats(const Hdf5Object& at, const char* name, Index size) {
  std::vector<float> out;
  if (const auto a = find(at, name)) {
    for (const double x : row(*a, size, a->is_number(), "an array of numbers")) {
      a->expect(std::isfinite(static_cast<float>(x)),
                "holds {} in place {}, expected finite float32 numbers", x, out.size());
      out.push_back(static_cast<float>(x));
    }
  }
  return out;
}

}  // namespace kvbench::h5
