// Values as bytes, for records that the same program reads back: numbers as they are in memory,
// strings, vectors, maps and matrices after their sizes, optional values after a byte 0 or 1; of a
// struct with each_member(value, visit) these members.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/types.hpp"

namespace kvbench {

class Packer {
 public:
  static constexpr bool reads = false;
  void raw(const void* from, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), begin, begin + size);
  }

  std::vector<std::byte> bytes;
};

/// Throws InputError if the bytes are not those of a Packer.
class Unpacker {
 public:
  static constexpr bool reads = true;
  explicit Unpacker(std::span<const std::byte> bytes) : rest_(bytes) {}
  void raw(void* to, std::size_t size) {
    expect(size <= rest_.size());
    if (size > 0) {
      std::memcpy(to, rest_.data(), size);
    }
    rest_ = rest_.subspan(size);
  }
  /// Whether `count` elements of `each` bytes are left.
  bool has(std::size_t count, std::size_t each) const { return count <= rest_.size() / each; }
  bool at_end() const { return rest_.empty(); }
  static void expect(bool good) {
    if (!good) {
      throw InputError("a log: got a record of another version");
    }
  }

 private:
  std::span<const std::byte> rest_;
};

/// For each_member of T in one template: T or const T.
template <class Given, class T>
concept MaybeConst = std::same_as<std::remove_const_t<Given>, T>;

/// Writes a value to a Packer or reads it from an Unpacker.
template <class Archive, class T>
void pass(Archive& archive, T& value) {
  if constexpr (std::is_arithmetic_v<T>) {
    archive.raw(&value, sizeof value);
  } else if constexpr (requires { value.has_value(); }) {
    std::uint8_t present = value.has_value() ? 1 : 0;
    pass(archive, present);
    if constexpr (Archive::reads) {
      archive.expect(present <= 1);
      if (present == 1) {
        value.emplace();
      }
    }
    if (present == 1) {
      pass(archive, *value);
    }
  } else if constexpr (requires { each_member(value, [](auto&) {}); }) {
    each_member(value, [&](auto& member) { pass(archive, member); });
  } else if constexpr (requires { value.cols(); }) {  // Matrix
    Index rows = value.rows();
    Index cols = value.cols();
    pass(archive, rows);
    pass(archive, cols);
    if constexpr (Archive::reads) {
      archive.expect(rows >= 0 && cols >= 0 && (cols == 0 || archive.has(rows, cols)));
      value = Matrix(rows, cols);
    }
    archive.raw(value.data(), sizeof(float) * static_cast<std::size_t>(rows * cols));
  } else if constexpr (requires { typename T::mapped_type; }) {
    std::size_t count = value.size();
    pass(archive, count);
    if constexpr (Archive::reads) {
      for (; count > 0; --count) {
        typename T::key_type key;
        pass(archive, key);
        pass(archive, value[key]);
      }
    } else {
      for (auto& [key, mapped] : value) {
        pass(archive, key);
        pass(archive, mapped);
      }
    }
  } else {  // vectors and strings
    constexpr std::size_t each = sizeof(typename T::value_type);
    std::size_t count = value.size();
    pass(archive, count);
    if constexpr (Archive::reads) {
      archive.expect(archive.has(count, each));
      value.resize(count);
    }
    archive.raw(value.data(), count * each);
  }
}

}  // namespace kvbench
