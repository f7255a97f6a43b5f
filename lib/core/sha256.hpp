// SHA-256 of files and texts by OpenSSL, for manifests.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace kvbench {

/// Hash of a text in parts. Throws IoError if OpenSSL has no SHA-256.
class Sha256 {
 public:
  Sha256();
  void add(std::string_view text);
  /// 64 lower-case hexadecimal digits. Call once, at the end.
  std::string text();

 private:
  std::shared_ptr<void> state_;  // OpenSSL's
};

/// 64 lower-case hexadecimal digits.
std::string sha256_text(std::string_view text);

/// Hash of the open file `path`. Throws IoError.
std::string sha256_of(int fd, const std::filesystem::path& path);
/// Hash of a file. Throws InputError if it cannot be opened or is not a regular
/// file, IoError if a read fails.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace kvbench
