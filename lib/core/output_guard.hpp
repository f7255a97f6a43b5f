// Inputs, devices and files of other programs are never overwritten: a command names its inputs and
// outputs before it writes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench {

/// First bytes of a partial file that identify its kind.
inline constexpr std::size_t kKindBytes = 64;

/// A kind of file written by kvbench.
struct FileKind {
  std::string name;  ///< with its article: "a result table"
  /// Whether an existing, regular, non-empty file is of this kind. Must return false for unreadable
  /// files.
  std::function<bool(const std::filesystem::path&)> matches;
  /// Whether a partial file, left by a killed run, may begin with these bytes.
  std::function<bool(std::string_view)> begins;
};

struct Output {
  std::filesystem::path path;
  FileKind kind;
};

/// A kind of text with the first line `line`. Fewer columns are an earlier version, more a later
/// one, and a killed run may have written only a part.
FileKind text_kind(std::string name, const std::string& line);

/// The first `count` (at least 1) bytes of a file, or fewer; none if it cannot be read.
std::string first_bytes(const std::filesystem::path& path, std::size_t count);

/// Throws InputError if an output, its PATH.tmp or its PATH.lock
/// - is an input (empty names are skipped), another output, or the target of stdout or stderr,
/// under
///   any name, through symbolic or hard links, existing or not;
/// - exists and is not a regular file;
/// - exists, is not empty and is not of its kind.
/// Fixes resolved_path for the outputs (fix_resolved_paths). Files of the right kind pass; the
/// command decides whether to replace, resume or reject them.
void check_outputs(const std::vector<std::filesystem::path>& inputs,
                   const std::vector<Output>& outputs);

/// Throws IoError "OPTION PATH: folder 'FOLDER' does not exist" if the folder of an output is
/// missing. Empty paths pass.
void check_folder(std::string_view option, const std::filesystem::path& path);

}  // namespace kvbench
