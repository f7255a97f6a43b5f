#include "report/sha256.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "core/error.hpp"

namespace kvbench {
namespace {

using Digest = std::array<unsigned char, 32>;

void check(int result) {
  if (result != 1) {
    throw IoError("sha256: OpenSSL offers no SHA-256 here");
  }
}

std::string hex(const Digest& digest) {
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace

std::string sha256_text(std::string_view text) {
  Digest digest{};
  check(EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr));
  return hex(digest);
}

std::string sha256_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) {
    throw InputError(fmt::format("{}: cannot open it: {}", path.string(), std::strerror(errno)));
  }
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(),
                                                                     &EVP_MD_CTX_free);
  check(EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr));
  std::vector<unsigned char> buffer(std::size_t{1} << 20);
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    check(EVP_DigestUpdate(hash.get(), buffer.data(), n));
  }
  if (std::ferror(file.get()) != 0) {
    throw IoError(fmt::format("{}: cannot read it: {}", path.string(), std::strerror(errno)));
  }
  Digest digest{};
  check(EVP_DigestFinal_ex(hash.get(), digest.data(), nullptr));
  return hex(digest);
}

}  // namespace kvbench
