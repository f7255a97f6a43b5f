// Internal to lib/trace: a survey as bytes. One list of members for each struct serves both ways.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "trace/survey.hpp"

namespace kvbench::h5 {

/// What begins each record of an answer: a node; the end; or why HDF5 cannot open the file.
enum class Record : std::uint8_t { node, end, failure, last = failure };

template <class Code>
void code(Code& c, Attribute& a) {
  c(a.name, a.kind, a.null, a.rank, a.count, a.numbers, a.texts, a.fault);
}
template <class Code>
void code(Code& c, Element& e) {
  c(e.kind, e.standard, e.big_endian, e.bytes);
}
template <class Code>
void code(Code& c, Filter& f) {
  c(f.id, f.value, f.label);
}
template <class Code>
void code(Code& c, Chunk& k) {
  c(k.address, k.bytes, k.mask);
}
template <class Code>
void code(Code& c, Dataset& d) {
  c(d.element, d.sizes, d.layout, d.address, d.bytes, d.compact, d.chunk, d.plain_edges, d.filters,
    d.chunks, d.fault);
}
template <class Code>
void code(Code& c, Link& l) {
  c(l.name, l.kind, l.node, l.fault);
}
template <class Code>
void code(Code& c, Node& n) {
  c(n.kind, n.attributes, n.links, n.dataset);
}

/// The answer that decode_survey gives back as it was.
std::vector<std::uint8_t> encode_survey(Survey& survey);

/// Appends to `bytes`.
class Encoder {
 public:
  std::vector<std::uint8_t> bytes;

  template <class... T>
  void operator()(T&... x) {
    (one(x), ...);
  }

 private:
  template <class T>
  void one(T& x) {
    if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      raw(&x, sizeof x);
    } else if constexpr (requires { x.push_back({}); }) {
      std::uint64_t count = x.size();
      raw(&count, sizeof count);
      if constexpr (std::is_integral_v<typename T::value_type>) {
        raw(x.data(), count * sizeof(typename T::value_type));
      } else {
        for (auto& element : x) {
          one(element);
        }
      }
    } else {
      code(*this, x);
    }
  }
  void raw(const void* from, std::size_t size) {
    const auto* first = static_cast<const std::uint8_t*>(from);
    bytes.insert(bytes.end(), first, first + size);
  }
};

/// Takes from bytes that anybody may have written. Throws std::runtime_error where they end early
/// or are no such value; what it allocates is in proportion to the bytes that are there.
class Decoder {
 public:
  explicit Decoder(std::span<const std::uint8_t> from) : left_(from) {}

  bool done() const { return left_.empty(); }
  template <class... T>
  void operator()(T&... x) {
    (one(x), ...);
  }

 private:
  template <class T>
  void one(T& x) {
    if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> value = 0;
      one(value);
      if (value > static_cast<std::underlying_type_t<T>>(T::last)) {
        throw std::runtime_error("holds a kind that does not exist");
      }
      x = static_cast<T>(value);
    } else if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t value = 0;
      one(value);
      x = value != 0;
    } else if constexpr (std::is_integral_v<T>) {
      std::memcpy(&x, take(sizeof x).data(), sizeof x);
    } else if constexpr (requires { x.push_back({}); }) {
      std::uint64_t count = 0;
      one(count);
      x.clear();
      if constexpr (std::is_integral_v<typename T::value_type>) {
        constexpr std::size_t kWidth = sizeof(typename T::value_type);
        if (count > left_.size() / kWidth) {
          throw std::runtime_error("ends early");
        }
        x.resize(count);
        const auto from = take(count * kWidth);
        if (count > 0) {
          std::memcpy(x.data(), from.data(), from.size());
        }
      } else {
        // Each takes some bytes, so a count that is too large ends here.
        for (std::uint64_t i = 0; i < count; ++i) {
          one(x.emplace_back());
        }
      }
    } else {
      code(*this, x);
    }
  }
  std::span<const std::uint8_t> take(std::size_t size) {
    if (size > left_.size()) {
      throw std::runtime_error("ends early");
    }
    const auto out = left_.first(size);
    left_ = left_.subspan(size);
    return out;
  }

  std::span<const std::uint8_t> left_;
};

}  // namespace kvbench::h5
