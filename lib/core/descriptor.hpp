// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace kvbench {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}  ///< -1: none
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }

  int get() const { return fd_; }
  /// Closes it; false, with errno set, if that fails.
  bool reset() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

}  // namespace kvbench
