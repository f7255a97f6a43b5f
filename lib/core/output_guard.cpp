#include "core/output_guard.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

// Identifies a file under all its names: device and inode, or those of the folder and a name if the
// file does not exist yet.
using Identity = std::tuple<dev_t, ino_t, std::string>;

Identity of(const struct stat& s, std::string name = {}) {
  return {s.st_dev, s.st_ino, std::move(name)};
}

std::optional<Identity> identity(const fs::path& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) == 0) {
    return of(s);
  }
  const fs::path target = resolved_path(fs::absolute(path));
  if (::stat(target.parent_path().c_str(), &s) == 0) {
    return of(s, target.filename().string());
  }
  return std::nullopt;  // no folder: nothing exists, nothing can be written
}

const char* describe(mode_t mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISCHR(mode)  ? "a device"
         : S_ISBLK(mode)  ? "a device"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a special file";
}

class Owners {
 public:
  explicit Owners(const std::vector<fs::path>& inputs) {
    for (const fs::path& input : inputs) {
      if (!input.empty()) {
        add(identity(input), fmt::format("what the run reads ({})", input.string()));
      }
    }
    for (const auto& [fd, what] : {std::pair{STDOUT_FILENO, "where standard output goes"},
                                   {STDERR_FILENO, "where standard error goes"}}) {
      struct stat s {};
      if (::fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) {
        add(of(s), what);
      }
    }
  }

  void claim(const fs::path& path, const std::string& what) {
    const auto id = identity(path);
    const auto owner = id ? owners_.find(*id) : owners_.end();
    if (owner != owners_.end()) {
      throw InputError(fmt::format("{}: is also {}, expected another file for {}", path.string(),
                                   owner->second, what));
    }
    add(id, fmt::format("{} ({})", what, path.string()));
  }

 private:
  void add(const std::optional<Identity>& id, std::string what) {
    if (id) {
      owners_.emplace(*id, std::move(what));
    }
  }

  std::map<Identity, std::string> owners_;
};

void check_node(const fs::path& path, const Output& output, bool partial) {
  struct stat s {};
  // lstat for partial files: one must not be a link. A dangling link counts as no file.
  if ((partial ? ::lstat(path.c_str(), &s) : ::stat(path.c_str(), &s)) != 0) {
    return;
  }
  if (!S_ISREG(s.st_mode)) {
    throw InputError(fmt::format("{}: not a regular file ({}), expected one or a free name for {}",
                                 path.string(), S_ISLNK(s.st_mode) ? "a link" : describe(s.st_mode),
                                 output.kind.name));
  }
  const bool ours = s.st_size == 0 || (partial ? output.kind.begins(first_bytes(path, kKindBytes))
                                               : output.kind.matches(path));
  if (!ours) {
    throw InputError(
        fmt::format("{}: exists and is not {}{} that kvbench wrote, expected such a "
                    "file or another name",
                    path.string(), partial ? "the beginning of " : "", output.kind.name));
  }
}

}  // namespace

std::string first_bytes(const fs::path& path, std::size_t count) {
  return read_at_most(path, count - 1).value_or("");
}

FileKind text_kind(std::string name, const std::string& line) {
  const auto begins = [line](std::string_view text) {
    const std::string_view first = text.substr(0, text.find('\n'));
    if (first.starts_with(line)) {
      return true;  // this version or a later one
    }
    const bool whole = first.size() < text.size();  // otherwise cut anywhere
    return std::string_view(line).starts_with(first) &&
           (!whole || (!first.empty() && line[first.size()] == ','));
  };
  // One byte more shows whether the line continues.
  return {std::move(name),
          [begins, count = line.size() + 1](const fs::path& path) {
            return begins(first_bytes(path, count));
          },
          begins};
}

void check_outputs(const std::vector<fs::path>& inputs, const std::vector<Output>& outputs) {
  fix_resolved_paths({});  // drop those of an earlier command
  Owners owners(inputs);
  for (const Output& output : outputs) {
    if (output.path == "-") {
      throw InputError(fmt::format(
          "-: {} cannot go to standard output, expected a file name (./- for a file named -)",
          output.kind.name));
    }
    owners.claim(output.path, output.kind.name);
  }
  for (const Output& output : outputs) {
    // Beside the file, not beside a link to it.
    const fs::path target = resolved_path(output.path);
    const fs::path partial = partial_path(target);
    owners.claim(partial, "the beginning of " + output.kind.name);
    owners.claim(fs::path(target) += ".lock", "the lock of " + output.kind.name);
    check_node(output.path, output, false);
    check_node(partial, output, true);
  }
  std::vector<fs::path> paths;
  std::ranges::transform(outputs, std::back_inserter(paths), &Output::path);
  fix_resolved_paths(paths);
}

void check_folder(std::string_view option, const fs::path& path) {
  const fs::path folder = resolved_path(path).parent_path();
  std::error_code error;
  if (!path.empty() && !folder.empty() && !fs::exists(folder, error)) {
    throw IoError(
        fmt::format("{} {}: folder '{}' does not exist", option, path.string(),
                    path.parent_path().empty() ? folder.string() : path.parent_path().string()));
  }
}

}  // namespace kvbench
