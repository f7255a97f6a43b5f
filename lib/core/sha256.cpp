#include "core/sha256.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "core/descriptor.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace kvbench {
namespace {

using Digest = std::array<unsigned char, 32>;

void check(int result) {
  if (result != 1) {
    throw IoError("sha256: OpenSSL has no SHA-256");
  }
}

EVP_MD_CTX* context(const std::shared_ptr<void>& state) {
  return static_cast<EVP_MD_CTX*>(state.get());
}

}  // namespace

Sha256::Sha256()
    : state_(EVP_MD_CTX_new(), [](void* p) { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(p)); }) {
  check(EVP_DigestInit_ex(context(state_), EVP_sha256(), nullptr));
}

void Sha256::add(std::string_view text) {
  check(EVP_DigestUpdate(context(state_), text.data(), text.size()));
}

std::string Sha256::text() {
  Digest digest{};
  check(EVP_DigestFinal_ex(context(state_), digest.data(), nullptr));
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string sha256_text(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.text();
}

std::string sha256_of(int fd, const std::filesystem::path& path) {
  Sha256 hash;
  std::vector<char> buffer(std::size_t{1} << 20);
  for (off_t at = 0;;) {
    const ssize_t got = ::pread(fd, buffer.data(), buffer.size(), at);
    if (got == 0) {
      return hash.text();
    }
    if (got < 0 && errno != EINTR) {
      throw_io("read", path, errno);
    }
    hash.add({buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
    at += std::max<ssize_t>(got, 0);
  }
}

std::string sha256_file(const std::filesystem::path& path) {
  // Non-blocking, as a manifest may name a pipe or a device.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    throw InputError(fmt::format("{}: cannot open: {}", path.string(), std::strerror(errno)));
  }
  struct stat about {};
  if (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
    throw InputError(fmt::format("{}: not a regular file", path.string()));
  }
  return sha256_of(file.get(), path);
}

}  // namespace kvbench
