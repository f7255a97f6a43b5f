#include "trace/hdf5_object.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

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

// An attribute. Strings, integers and floats of up to 8 bytes and enumerations have values.
struct Attribute {
  enum class Kind : std::uint8_t { integer, natural, real, text, flags, other };
  const char* name = "";
  Kind kind = Kind::other;
  bool null = false;  // of a null dataspace
  int rank = 0;
  std::uint64_t count = 0;             // elements
  std::vector<std::uint64_t> numbers;  // bits of int64, uint64 or double
  std::vector<std::string> texts;
};

using Kind = Attribute::Kind;

bool is_integer(const Attribute& a) {
  return a.kind == Kind::integer || a.kind == Kind::natural;
}

bool is_number(const Attribute& a) {
  return a.kind == Kind::real || is_integer(a);
}

// A number of an attribute, from its bits.
double number(const Attribute& a, std::uint64_t bits) {
  return a.kind == Kind::real      ? std::bit_cast<double>(bits)
         : a.kind == Kind::integer ? static_cast<double>(static_cast<std::int64_t>(bits))
                                   : static_cast<double>(bits);
}

template <class... Args>
[[noreturn]] void refuse(const Object& at, const Attribute& a, fmt::format_string<Args...> what,
                         Args&&... args) {
  at.where.refuse("attribute {} {}", a.name, fmt::format(what, std::forward<Args>(args)...));
}

void expect(const Object& at, const Attribute& a, bool good) {
  if (!good) {
    refuse(at, a, "cannot be read ({})", last_error());
  }
}

void read_variable_texts(const Object& at, hid_t id, hid_t type, Attribute& a) {
  const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(memory, H5T_VARIABLE);
  H5Tset_cset(memory, H5Tget_cset(type));
  std::vector<char*> texts(a.count, nullptr);
  expect(at, a, H5Aread(id, memory, static_cast<void*>(texts.data())) >= 0);
  for (char* text : texts) {
    a.texts.emplace_back(text == nullptr ? "" : text);
    H5free_memory(text);
  }
}

void read_fixed_texts(const Object& at, hid_t id, hid_t type, Attribute& a) {
  const std::size_t size = H5Tget_size(type);
  if (size == 0 || a.count > kMaxAttributeBytes / size) {
    refuse(at, a, "cannot be read ({} times {} bytes, expected at most {})", a.count, size,
           kMaxAttributeBytes);
  }
  // HDF5 converts all paddings to this one.
  const Handle terminated(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(terminated, size + 1);
  H5Tset_cset(terminated, H5Tget_cset(type));
  std::string all((size + 1) * a.count, '\0');
  expect(at, a, H5Aread(id, terminated, all.data()) >= 0);
  for (std::size_t i = 0; i < a.count; ++i) {
    a.texts.emplace_back(&all[i * (size + 1)]);
  }
}

// Sets the kind of numbers of an HDF5 type. Returns the type that they have in memory, or nothing.
std::optional<hid_t> number_in_memory(hid_t type, Attribute& a) {
  const std::size_t width = H5Tget_size(type);
  const bool narrow = width > 0 && width <= 8;
  const H5T_class_t kind = H5Tget_class(type);
  if (kind == H5T_FLOAT) {
    a.kind = Kind::real;
    return H5T_NATIVE_DOUBLE;
  }
  if (kind == H5T_ENUM && narrow) {
    a.kind = Kind::flags;
    return H5T_NATIVE_INT64;
  }
  if (kind == H5T_INTEGER && narrow) {
    const bool natural = H5Tget_sign(type) == H5T_SGN_NONE;
    a.kind = natural ? Kind::natural : Kind::integer;
    return natural ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64;
  }
  return std::nullopt;
}

std::optional<Attribute> find(const Object& at, const char* name) {
  Attribute a;
  a.name = name;
  const htri_t exists = H5Aexists(at.id, name);
  expect(at, a, exists >= 0);
  if (exists == 0) {
    return std::nullopt;
  }
  const Handle id(H5Aopen(at.id, name, H5P_DEFAULT), H5Aclose);
  expect(at, a, static_cast<bool>(id));
  const Handle type(H5Aget_type(id), H5Tclose);
  expect(at, a, static_cast<bool>(type));
  const Handle space(H5Aget_space(id), H5Sclose);
  expect(at, a, static_cast<bool>(space));
  a.null = H5Sget_simple_extent_type(space) == H5S_NULL;
  if (!a.null) {
    a.count =
        static_cast<std::uint64_t>(std::max<hssize_t>(H5Sget_simple_extent_npoints(space), 0));
    a.rank = std::max(H5Sget_simple_extent_ndims(space), 0);
  }
  if (H5Tget_class(type) == H5T_STRING) {
    a.kind = Kind::text;
    if (a.count > 0 && a.count <= kMaxTexts) {
      const bool variable = H5Tis_variable_str(type) > 0;
      (variable ? read_variable_texts : read_fixed_texts)(at, id, type, a);
    }
    return a;
  }
  const auto memory = number_in_memory(type, a);
  if (memory && a.count > 0 && a.count <= kMaxAttributeBytes / 8) {
    a.numbers.resize(a.count);
    expect(at, a, H5Aread(id, *memory, a.numbers.data()) >= 0);
  }
  return a;
}

// The only one of `list`, which an attribute holds if it is of the right kind.
template <class T>
const T& only(const Object& at, const Attribute& a, const std::vector<T>& list, bool right_kind,
              const char* article, const char* noun) {
  if (!right_kind) {
    refuse(at, a, "has the wrong type, expected {} {}", article, noun);
  }
  if (a.count != 1 || list.size() != 1) {
    refuse(at, a, "has {} elements, expected one {}", a.count, noun);
  }
  return list.front();
}

// The bits of an attribute that is one integer.
std::uint64_t integer_bits(const Object& at, const Attribute& a) {
  return only(at, a, a.numbers, is_integer(a), "an", "integer");
}

template <class T>
T required(const Object& at, const char* name, std::optional<T>&& value, const char* what) {
  if (!value) {
    at.where.refuse("attribute {} is missing, expected {}", name, what);
  }
  return *std::move(value);
}

Object open_object(const Object& parent, std::string_view name, H5O_type_t kind, const char* noun) {
  Object out{parent.file, {}, parent.where / name, parent.way};
  begin_step();
  if (!parent.file->count_object()) {
    out.where.refuse("is reached after too many objects, expected fewer in a file");
  }
  if (!has_link(parent, name)) {
    out.where.refuse("{} is missing", noun);
  }
  const std::string link(name);
  LinkInfo about_link{};
  const bool known = H5Lget_info(parent.id, link.c_str(), &about_link, H5P_DEFAULT) >= 0;
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
  if (std::ranges::count(out.way, about.addr) > 0) {
    out.where.refuse("is a link to a group that holds it, expected a {}", noun);
  }
  if (about.type != kind) {
    out.where.refuse("expected a {}, found another kind of object", noun);
  }
  out.way.push_back(about.addr);
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

// The numbers of an attribute that has `size` in one row.
std::span<const std::uint64_t> row(const Object& at, const Attribute& a, Index size) {
  if (a.rank > 1 || std::cmp_not_equal(a.count, size)) {
    refuse(at, a, "has rank {} and {} elements, expected {} in one row", a.rank, a.count, size);
  }
  if (a.numbers.size() != a.count) {
    refuse(at, a, "has {} elements, expected fewer", a.count);
  }
  return a.numbers;
}

}  // namespace

Object open_root(Hdf5File& file, const std::string& path) {
  Object out{&file, Handle(H5Gopen2(file.id(), "/", H5P_DEFAULT), H5Gclose), {path, "/"}};
  ObjectInfo about{};
  if (!out.id || H5Oget_info2(out.id, &about, H5O_INFO_BASIC) < 0) {
    out.where.refuse("group cannot be opened ({}), expected a complete HDF5 file", last_error());
  }
  out.way.push_back(about.addr);
  return out;
}

Object open_group(const Object& parent, std::string_view name) {
  return open_object(parent, name, H5O_TYPE_GROUP, "group");
}

Object open_dataset(const Object& parent, std::string_view name) {
  return open_object(parent, name, H5O_TYPE_DATASET, "dataset");
}

bool has_link(const Object& parent, std::string_view name) {
  return has_link(parent.id, name);
}

std::vector<std::string> link_names(const Object& group) {
  std::vector<std::string> names;
  hsize_t at = 0;
  if (H5Literate(group.id, H5_INDEX_NAME, H5_ITER_NATIVE, &at, collect_link, &names) < 0) {
    group.where.refuse("the members of the group cannot be listed ({})", last_error());
  }
  std::ranges::sort(names, natural_less);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void check_members(const Object& group, std::initializer_list<std::string_view> known) {
  for (const std::string& name : optional_strings(group, schema::kMembers)) {
    const bool looked_for = known.size() == 0 || std::ranges::count(known, name) > 0;
    if (looked_for && !has_link(group, name)) {
      (group.where / name)
          .refuse("is missing, expected what attribute {} of the group names", schema::kMembers);
    }
  }
}

std::optional<std::string> optional_string(const Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  return a->null ? std::string() : only(at, *a, a->texts, a->kind == Kind::text, "a", "string");
}

std::vector<std::string> optional_strings(const Object& at, const char* name) {
  auto a = find(at, name);
  if (!a) {
    return {};
  }
  if (a->kind != Kind::text || a->texts.empty()) {
    refuse(at, *a, "has the wrong type, expected a string or an array of at most {}", kMaxTexts);
  }
  return std::move(a->texts);
}

std::vector<std::string> required_strings(const Object& at, const char* name) {
  std::vector<std::string> texts = optional_strings(at, name);
  if (texts.empty()) {
    at.where.refuse("attribute {} is missing, expected a string or an array of them", name);
  }
  return texts;
}

std::optional<std::int64_t> optional_int(const Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  const std::uint64_t bits = integer_bits(at, *a);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  if (a->kind == Kind::natural && bits > static_cast<std::uint64_t>(kMax)) {
    return kMax;
  }
  return static_cast<std::int64_t>(bits);
}

std::optional<std::uint64_t> optional_unsigned(const Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  const std::uint64_t bits = integer_bits(at, *a);
  if (a->kind == Kind::integer && static_cast<std::int64_t>(bits) < 0) {
    at.where.refuse("{} is {}, expected at least 0", name, static_cast<std::int64_t>(bits));
  }
  return bits;
}

std::optional<double> optional_float(const Object& at, const char* name) {
  const auto a = find(at, name);
  if (!a) {
    return std::nullopt;
  }
  return number(*a, only(at, *a, a->numbers, is_number(*a), "a", "number"));
}

std::string required_string(const Object& at, const char* name) {
  return required(at, name, optional_string(at, name), "a string");
}

std::int64_t required_int(const Object& at, const char* name) {
  return required(at, name, optional_int(at, name), "an integer");
}

std::vector<std::uint8_t> optional_flags(const Object& at, const char* name, Index size) {
  const auto a = find(at, name);
  if (!a || a->null) {
    return {};
  }
  // h5py stores booleans as an enumeration over 8-bit integers.
  if (!is_integer(*a) && a->kind != Kind::flags) {
    refuse(at, *a, "has the wrong type, expected an integer array");
  }
  std::vector<std::uint8_t> flags;
  for (const std::uint64_t bits : row(at, *a, size)) {
    flags.push_back(bits != 0 ? 1 : 0);
  }
  return flags;
}

std::vector<float> optional_floats(const Object& at, const char* name, Index size) {
  const auto a = find(at, name);
  if (!a || a->null) {
    return {};
  }
  if (!is_number(*a)) {
    refuse(at, *a, "has the wrong type, expected an array of numbers");
  }
  std::vector<float> numbers;
  for (const std::uint64_t bits : row(at, *a, size)) {
    const double x = number(*a, bits);
    if (!std::isfinite(static_cast<float>(x))) {
      refuse(at, *a, "holds {} in place {}, expected finite float32 numbers", x, numbers.size());
    }
    numbers.push_back(static_cast<float>(x));
  }
  return numbers;
}

}  // namespace kvbench::h5
