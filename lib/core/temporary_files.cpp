#include "core/temporary_files.hpp"

#include <mutex>
#include <set>
#include <system_error>

namespace kvbench {
namespace {

namespace fs = std::filesystem;

struct Paths {
  std::mutex mutex;
  std::set<fs::path> all;
};

// Never destroyed: threads may write while the process ends.
Paths& paths() {
  static auto* all = new Paths;
  return *all;
}

}  // namespace

void register_temporary(const fs::path& path) {
  const std::lock_guard lock(paths().mutex);
  paths().all.insert(path);
}

void release_temporary(const fs::path& path) {
  const std::lock_guard lock(paths().mutex);
  paths().all.erase(path);
}

void remove_temporaries() {
  const std::lock_guard lock(paths().mutex);
  for (const fs::path& path : paths().all) {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
}

}  // namespace kvbench
