#include "terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/parse_number.hpp"
#include "core/printable.hpp"

namespace kvbench {

void open_missing_streams() {
  // In ascending order: open() returns the lowest free descriptor.
  for (const auto& [fd, mode] :
       {std::pair{STDIN_FILENO, O_RDONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}}) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
      static_cast<void>(::open("/dev/null", mode));
    }
  }
}

void log_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {  // printable() would escape line ends
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += printable(text.substr(0, end));
    out += text.substr(end, 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  write_message(STDERR_FILENO, out);
}

std::optional<std::size_t> stdout_width() {
  constexpr std::size_t unknown_terminal = 100;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  const char* const set = std::getenv("COLUMNS");
  const std::string_view text = set == nullptr ? "" : set;
  std::size_t width = 0;
  if (parse_number(text, width) && width > 0) {
    return width;
  }
  return ::isatty(STDOUT_FILENO) == 1 ? std::optional(unknown_terminal) : std::nullopt;
}

void check_stdout() {
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw IoError("cannot write to standard output");
  }
}

}  // namespace kvbench
