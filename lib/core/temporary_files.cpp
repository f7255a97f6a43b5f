#include "core/temporary_files.hpp"

#include <mutex>
#include <set>
#include <system_error>
#include <utility>

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

void remove_path(const fs::path& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

void forget(const fs::path* path) {
  const std::unique_ptr<const fs::path> owned(path);
  const std::lock_guard lock(paths().mutex);
  paths().all.erase(*owned);
}

}  // namespace

Temporary::Temporary(fs::path path) : path_(new fs::path(std::move(path))) {
  const std::lock_guard lock(paths().mutex);
  paths().all.insert(*path_);
}

void Temporary::keep() {
  forget(path_.release());
}

void Temporary::Remove::operator()(const fs::path* path) const {
  remove_path(*path);
  forget(path);
}

void remove_temporaries() {
  const std::lock_guard lock(paths().mutex);
  for (const fs::path& path : paths().all) {
    remove_path(path);
  }
}

}  // namespace kvbench
