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

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  void update(const void* data, std::size_t size) {
    check(EVP_DigestUpdate(context_.get(), data, size) == 1);
  }

  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
    std::string out;
    for (unsigned int i = 0; i < size; ++i) {
      out += fmt::format("{:02x}", digest[i]);
    }
    return out;
  }

 private:
  static void check(bool ok) {
    if (!ok) {
      throw IoError("sha256: OpenSSL offers no SHA-256 here");
    }
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256_text(std::string_view text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  const auto close = [](std::FILE* f) { std::fclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  if (!file) {
    throw InputError(fmt::format("{}: cannot open it: {}", path.string(), std::strerror(errno)));
  }
  Sha256 hash;
  std::vector<unsigned char> buffer(std::size_t{1} << 20);
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    hash.update(buffer.data(), n);
  }
  if (std::ferror(file.get()) != 0) {
    throw IoError(fmt::format("{}: cannot read it: {}", path.string(), std::strerror(errno)));
  }
  return hash.hex();
}

}  // namespace kvbench
