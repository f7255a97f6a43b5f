// SHA-256 of files and texts, by OpenSSL: what the manifest identifies inputs by.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace kvbench {

/// Of a text that comes in parts. Throws IoError where OpenSSL offers none.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view text);
  /// Lower-case hexadecimal, 64 characters; once, at the end.
  std::string text();

 private:
  std::shared_ptr<void> state_;  // OpenSSL's
};

/// Lower-case hexadecimal, 64 characters.
std::string sha256_text(std::string_view text);

/// Streams the file; needs no memory for its size. Throws InputError when it cannot be opened or
/// is no regular file, IoError when reading fails half-way.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace kvbench
