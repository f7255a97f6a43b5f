// What a process that is interrupted takes with it: unfinished files, locks, scratch folders.
// (After kill -9 they stay, and the next run of the same command replaces them.)
#pragma once

#include <filesystem>

namespace kvbench {

/// From now until release_temporary, the path is to go if the process is interrupted. Who owns it
/// removes it in all other cases. Thread-safe.
void register_temporary(const std::filesystem::path& path);
void release_temporary(const std::filesystem::path& path);

/// Removes all that is noted, folders with what is in them. For a process that is about to end:
/// errors are nobody's any more.
void remove_temporaries();

}  // namespace kvbench
