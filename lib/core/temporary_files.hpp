// Files and folders to remove when the process is interrupted: partial files, locks, scratch
// folders. After kill -9 they stay, and the next run of the same command replaces them.
#pragma once

#include <filesystem>

namespace kvbench {

/// Marks a path for removal on interruption until release_temporary. The owner removes it in all
/// other cases. Thread-safe.
void register_temporary(const std::filesystem::path& path);
void release_temporary(const std::filesystem::path& path);

/// Removes all marked paths, folders with their contents, as the process ends. Errors are ignored.
void remove_temporaries();

}  // namespace kvbench
