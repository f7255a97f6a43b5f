// Safe printing of names from files: no terminal commands, line breaks or changes of direction.
#pragma once

#include <string>
#include <string_view>

namespace kvbench {

/// Replaces by ? each control character (C0, DEL, C1), bidirectional control, line or paragraph
/// separator, and byte that is not UTF-8.
std::string printable(std::string_view text);

}  // namespace kvbench
