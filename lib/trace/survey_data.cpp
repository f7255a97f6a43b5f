#include "trace/survey_data.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace kvbench::h5 {

namespace {

enum class Record : std::uint8_t { node, end, failure };

template <class T>
constexpr T kLast = T::other;
template <>
constexpr auto kLast<Record> = Record::failure;
template <>
constexpr auto kLast<Link::Kind> = Link::Kind::unreadable;

// Hands the members of a struct to `code`, for the encoder and the decoder alike.
template <class Code, class T>
void members(Code& code, T& x) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, Attribute>) {
    code(x.name, x.kind, x.null, x.rank, x.count, x.numbers, x.texts, x.fault);
  } else if constexpr (std::is_same_v<Plain, Element>) {
    code(x.kind, x.standard, x.big_endian, x.bytes);
  } else if constexpr (std::is_same_v<Plain, Filter>) {
    code(x.id, x.value, x.label);
  } else if constexpr (std::is_same_v<Plain, Chunk>) {
    code(x.address, x.bytes, x.mask);
  } else if constexpr (std::is_same_v<Plain, Dataset>) {
    code(x.element, x.sizes, x.layout, x.address, x.bytes, x.compact, x.chunk, x.plain_edges,
         x.filters, x.chunks, x.fault);
  } else if constexpr (std::is_same_v<Plain, Link>) {
    code(x.name, x.kind, x.node, x.fault);
  } else {
    code(x.kind, x.attributes, x.links, x.dataset);
  }
}

template <class T>
concept Number = std::is_integral_v<T> || std::is_enum_v<T>;
template <class T>
concept List = requires(const T& x) {
  x.size();
};

struct Encoder {
  Bytes& to;

  template <class... T>
  void operator()(const T&... x) {
    (one(x), ...);
  }
  template <class T>
  void one(const T& x) {
    if constexpr (Number<T>) {
      raw(&x, sizeof x);
    } else if constexpr (List<T>) {
      one(std::uint64_t{x.size()});
      if constexpr (Number<typename T::value_type>) {
        raw(x.data(), x.size() * sizeof(typename T::value_type));
      } else {
        for (const auto& element : x) {
          one(element);
        }
      }
    } else {
      members(*this, x);
    }
  }
  void raw(const void* from, std::size_t size) {
    const auto* first = static_cast<const std::uint8_t*>(from);
    to.insert(to.end(), first, first + size);
  }
};

struct Decoder {
  std::span<const std::uint8_t> left;

  template <class... T>
  void operator()(T&... x) {
    (one(x), ...);
  }
  template <class T>
  T get() {
    T x{};
    one(x);
    return x;
  }
  template <class T>
  void one(T& x) {
    if constexpr (std::is_enum_v<T>) {
      x = static_cast<T>(get<std::underlying_type_t<T>>());
      if (x > kLast<T>) {
        throw std::runtime_error("holds a kind that does not exist");
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      x = get<std::uint8_t>() != 0;
    } else if constexpr (Number<T>) {
      raw(&x, 1, sizeof x);
    } else if constexpr (List<T>) {
      const auto count = get<std::uint64_t>();
      x.clear();
      if constexpr (Number<typename T::value_type>) {
        constexpr std::size_t kWidth = sizeof(typename T::value_type);
        x.resize(std::min<std::uint64_t>(count, left.size() / kWidth));
        raw(x.data(), count, kWidth);
      } else {
        // Each element takes at least one byte, so a count that is too large ends here.
        for (std::uint64_t i = 0; i < count; ++i) {
          one(x.emplace_back());
        }
      }
    } else {
      members(*this, x);
    }
  }
  void raw(void* to, std::uint64_t count, std::size_t width) {
    if (count > left.size() / width) {
      throw std::runtime_error("ends early");
    }
    if (count > 0) {
      std::memcpy(to, left.data(), count * width);
      left = left.subspan(count * width);
    }
  }
};

// A converter (chunk_codec.hpp) reads as many bytes as a standard element claims to have.
void check_element(const Element& e) {
  const bool is_real = e.kind == Element::Kind::real;
  const bool is_number =
      is_real || e.kind == Element::Kind::integer || e.kind == Element::Kind::natural;
  const bool has_its_size =
      e.bytes == 2 || e.bytes == 4 || e.bytes == 8 || (e.bytes == 1 && !is_real);
  if (e.standard && !(is_number && has_its_size)) {
    throw std::runtime_error("has a standard element of another size");
  }
}

void sum_chunks(Dataset& d) {
  for (const Chunk& c : d.chunks) {
    std::uint64_t end = 0;
    if (c.bytes > 0 && __builtin_add_overflow(c.address, c.bytes, &end)) {
      end = kNowhere;
    }
    d.stored += c.bytes;  // at most a million times 32 bits, or what the answer has room for
    d.end = std::max(d.end, end);
  }
}

}  // namespace

void append_node(Bytes& answer, const Node& node) {
  Encoder{answer}(Record::node, node);
}

void append_end(Bytes& answer) {
  Encoder{answer}(Record::end);
}

void append_failure(Bytes& answer, const std::string& what) {
  Encoder{answer}(Record::failure, what);
}

Bytes encode_survey(const Survey& survey) {
  Bytes out;
  for (const Node& node : survey.nodes) {
    append_node(out, node);
  }
  append_end(out);
  return out;
}

Survey decode_survey(std::span<const std::uint8_t> answer) {
  Decoder from{answer};
  Survey out;
  for (Record kind{}; (kind = from.get<Record>()) != Record::end;) {
    if (kind == Record::failure) {
      throw std::runtime_error(from.get<std::string>());
    }
    Node node = from.get<Node>();
    for (const Link& link : node.links) {
      if (link.kind == Link::Kind::object && link.node >= out.nodes.size()) {
        throw std::runtime_error("leads to an object that is not there");
      }
    }
    if (std::ranges::adjacent_find(node.links, std::ranges::greater_equal(), &Link::name) !=
        node.links.end()) {
      throw std::runtime_error("has names out of order");
    }
    for (Dataset& d : node.dataset) {
      check_element(d.element);
      sum_chunks(d);
    }
    out.nodes.push_back(std::move(node));
  }
  if (out.nodes.empty() || !from.left.empty()) {
    throw std::runtime_error("has no end where it is expected");
  }
  return out;
}

}  // namespace kvbench::h5
