// Standard streams and the log. Closed streams do not affect a run or its files.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvbench {

/// Opens closed standard streams on /dev/null: otherwise the next file would get their number, and
/// with it the messages. Writes to such a stdout fail; writes to such a stderr are discarded. Must
/// be called first.
void open_missing_streams();

/// Writes the lines of `text`, made printable(), to stderr. Write errors are ignored.
void log_text(std::string_view text);

template <class... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
  log_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Columns of a line on stdout: those of the terminal, otherwise $COLUMNS, otherwise 100. No value
/// (unlimited) if stdout is not a terminal and $COLUMNS is not set.
std::optional<std::size_t> stdout_width();

/// Throws IoError if a write to stdout failed.
void check_stdout();

}  // namespace kvbench
