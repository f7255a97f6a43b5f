#include "trace/hdf5_object.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "trace/schema.hpp"

namespace kvbench::h5 {

namespace {

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

const Attribute* find(const Object& at, std::string_view name) {
  const auto found = std::ranges::find(at.node->attributes, name, &Attribute::name);
  if (found == at.node->attributes.end()) {
    return nullptr;
  }
  if (!found->fault.empty()) {
    refuse(at, *found, "cannot be read ({})", found->fault);
  }
  return &*found;
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

const Link* find_link(const Object& parent, std::string_view name) {
  const auto& links = parent.node->links;
  const auto found = std::ranges::lower_bound(links, name, {}, &Link::name);
  return found == links.end() || found->name != name ? nullptr : &*found;
}

Object open_object(const Object& parent, std::string_view name, Node::Kind kind, const char* noun) {
  Object out{parent.survey, nullptr, parent.where / name};
  const Link* link = find_link(parent, name);
  if (link == nullptr) {
    out.where.refuse("{} is missing", noun);
  }
  switch (link->kind) {
    case Link::Kind::object: break;
    case Link::Kind::outside:
      out.where.refuse("is a link out of the file, expected a {} in it", noun);
    case Link::Kind::nowhere:
      out.where.refuse("is a soft link that leads to nothing in the file, expected a {} ({})", noun,
                       link->fault);
    case Link::Kind::ancestor:
      out.where.refuse("is a link to a group that holds it, expected a {}", noun);
    case Link::Kind::unreadable: out.where.refuse("{} cannot be opened ({})", noun, link->fault);
  }
  out.node = &parent.survey->nodes[link->node];
  if (out.node->kind != kind) {
    out.where.refuse("expected a {}, found another kind of object", noun);
  }
  return out;
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

Object open_root(const Survey& survey, const std::string& path) {
  return {&survey, &survey.nodes.back(), {path, "/"}};
}

Object open_group(const Object& parent, std::string_view name) {
  return open_object(parent, name, Node::Kind::group, "group");
}

Object open_dataset(const Object& parent, std::string_view name) {
  Object out = open_object(parent, name, Node::Kind::dataset, "dataset");
  if (out.node->dataset.size() != 1) {
    out.where.refuse("dataset is not described, expected its shape and storage");
  }
  return out;
}

bool has_link(const Object& parent, std::string_view name) {
  return find_link(parent, name) != nullptr;
}

std::vector<std::string> link_names(const Object& group) {
  std::vector<std::string> names;
  for (const Link& link : group.node->links) {
    names.push_back(link.name);
  }
  std::sort(names.begin(), names.end(), natural_less);
  return names;
}

void check_members(const Object& group, std::initializer_list<std::string_view> known) {
  const std::vector<std::string>* members = optional_strings(group, schema::kMembers);
  if (members == nullptr) {
    return;
  }
  for (const std::string& name : *members) {
    const bool looked_for = known.size() == 0 || std::ranges::count(known, name) > 0;
    if (looked_for && !has_link(group, name)) {
      (group.where / name)
          .refuse("is missing, expected what attribute {} of the group names", schema::kMembers);
    }
  }
}

std::optional<std::string> optional_string(const Object& at, const char* name) {
  const Attribute* a = find(at, name);
  if (a == nullptr) {
    return std::nullopt;
  }
  return a->null ? std::string() : only(at, *a, a->texts, a->kind == Kind::text, "a", "string");
}

const std::vector<std::string>* optional_strings(const Object& at, const char* name) {
  const Attribute* a = find(at, name);
  if (a != nullptr && (a->kind != Kind::text || a->texts.empty())) {
    refuse(at, *a, "has the wrong type, expected a string or an array of at most {}", kMaxTexts);
  }
  return a == nullptr ? nullptr : &a->texts;
}

std::vector<std::string> required_strings(const Object& at, const char* name) {
  const std::vector<std::string>* texts = optional_strings(at, name);
  if (texts == nullptr) {
    at.where.refuse("attribute {} is missing, expected a string or an array of them", name);
  }
  return *texts;
}

std::optional<std::int64_t> optional_int(const Object& at, const char* name) {
  const Attribute* a = find(at, name);
  if (a == nullptr) {
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
  const Attribute* a = find(at, name);
  if (a == nullptr) {
    return std::nullopt;
  }
  const std::uint64_t bits = integer_bits(at, *a);
  if (a->kind == Kind::integer && static_cast<std::int64_t>(bits) < 0) {
    at.where.refuse("{} is {}, expected at least 0", name, static_cast<std::int64_t>(bits));
  }
  return bits;
}

std::optional<double> optional_float(const Object& at, const char* name) {
  const Attribute* a = find(at, name);
  if (a == nullptr) {
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
  const Attribute* a = find(at, name);
  if (a == nullptr || a->null) {
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
  const Attribute* a = find(at, name);
  if (a == nullptr || a->null) {
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
