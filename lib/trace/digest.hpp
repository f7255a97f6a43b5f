// Internal to lib/trace: the attribute `sha256` of a dataset (docs/trace_format.md#checksums). It
// is of the elements, not of the bytes in the file, so a copy with other chunks or filters keeps
// it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/sha256.hpp"
#include "core/types.hpp"
#include "trace/hdf5_object.hpp"

namespace kvbench::h5 {

inline constexpr const char* kDigest = "sha256";

/// The texts of the attribute in the survey, one for each of `parts` (heads, or 1 for the whole
/// dataset); none without the attribute. Throws InputError unless each is 64 lower-case hexadecimal
/// digits.
std::span<const std::string> digests_of(const Object& dataset, std::size_t parts);

/// SHA-256 of elements that come in pieces: those of the file's type, little-endian.
class ElementHash {
 public:
  explicit ElementHash(DType type) : type_(type) {}
  /// `count` numbers that came from elements of the type.
  void add(const float* x, Index count);
  /// Numbers that came from integers of `width` bytes.
  void add_integers(std::span<const std::int64_t> x, std::size_t width);
  std::string text() { return hash_.text(); }

 private:
  Sha256 hash_;
  DType type_;
};

/// Throws InputError if the hash differs from the attribute's. `part`: "head 3: ", or empty.
void check_digest(const Place& where, const std::string& part, const std::string& expected,
                  ElementHash& got);

}  // namespace kvbench::h5
