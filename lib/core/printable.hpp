// Names from files on a terminal: none may command it, break a line, or turn the text around.
#pragma once

#include <string>
#include <string_view>

namespace kvbench {

/// The text with a ? for each control character (C0, DEL, C1), each character that directs the
/// order of writing (bidirectional marks, embeddings, overrides, isolates), line and paragraph
/// separators, and each byte that is not UTF-8.
std::string printable(std::string_view text);

}  // namespace kvbench
