#include "terminal.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"

namespace kvbench {

void open_missing_streams() {
  // Ascending: open() gives the lowest number that is free.
  for (const auto& [fd, mode] :
       {std::pair{STDIN_FILENO, O_RDONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}}) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      static_cast<void>(::open("/dev/null", mode));
    }
  }
}

void tell_text(std::string_view text) {
  write_if_read(STDERR_FILENO, text);
}

void check_stdout() {
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw IoError("cannot write to standard output");
  }
}

}  // namespace kvbench
