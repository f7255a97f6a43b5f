// What may be written. Every command names what it reads and what it is going to write before it
// writes anything; an input, a device or a file of somebody else's is never written over.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvbench {

/// Bytes of an unfinished file that say what it was to become.
inline constexpr std::size_t kKindBytes = 64;

/// A kind of file that kvbench writes.
struct FileKind {
  std::string name;  ///< with its article: "a result table"
  /// Whether a file is one. It is there, a regular file and not empty. What cannot be read is none.
  std::function<bool(const std::filesystem::path&)> made_here;
  /// Whether an unfinished one, which a killed run left, may begin with these bytes.
  std::function<bool(std::string_view)> begins;
};

struct Output {
  std::filesystem::path path;
  FileKind kind;
};

/// A kind of text whose first line is `line`. One with fewer columns is of an earlier version, one
/// with more behind these of a later one, and a killed run may have written a part of it only.
FileKind text_kind(std::string name, const std::string& line);

/// The first bytes of a file, at most `count`; none of one that cannot be read.
std::string first_bytes(const std::filesystem::path& path, std::size_t count);

/// Throws InputError (what, where, got, expected) where an output, or the PATH.tmp that it is
/// written in or the PATH.lock that guards it,
/// - is one file with something in `inputs` (empty names are none), with another output or with
/// what stdout or stderr go
///   to: under any name, through symbolic or hard links, whether it exists yet or not;
/// - exists and is no regular file;
/// - exists, is not empty and is not of its kind.
/// From then on resolved_path leads where the outputs lead now (fix_resolved_paths).
/// Files of the right kind pass: whether they are replaced, resumed or refused is the command's
/// decision.
void check_outputs(const std::vector<std::filesystem::path>& inputs,
                   const std::vector<Output>& outputs);

/// Throws IoError "OPTION PATH: folder 'FOLDER' does not exist" where the output that an option
/// names has no folder to stand in. Nothing for an empty path.
void check_folder(std::string_view option, const std::filesystem::path& path);

}  // namespace kvbench
