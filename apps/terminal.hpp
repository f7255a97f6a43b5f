// Standard streams: what a user is told. Nobody who closes them may spoil a run or its files.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace kvbench {

/// To be called first. A stream that the caller has closed is opened on /dev/null: else the next
/// file that the run opens would have its number, and messages would go into that file. Writing to
/// such a standard output fails, as it should; such a standard error swallows what it is given.
void open_missing_streams();

/// Writes the text, as printable() leaves its lines, to stderr. Where that fails (closed, full, a
/// pipe that nobody reads any more), nothing happens: the run and its exit code are more than the
/// message.
void tell_text(std::string_view text);

template <class... Args>
void tell(fmt::format_string<Args...> format, Args&&... args) {
  tell_text(fmt::format(format, std::forward<Args>(args)...));
}

/// Characters that a line on stdout may have: the terminal's, else $COLUMNS, else 100. Nothing
/// where stdout is no terminal and $COLUMNS is not set: a file's lines may have any length.
std::optional<std::size_t> stdout_width();

/// Throws IoError where something that was printed to stdout did not get there.
void check_stdout();

}  // namespace kvbench
