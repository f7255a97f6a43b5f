// Memory of the process.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace kvbench {

/// Bytes of address space and resident memory; 0 without /proc.
struct ProcessBytes {
  std::uint64_t mapped = 0;
  std::uint64_t resident = 0;
};

inline ProcessBytes process_bytes() {
  ProcessBytes out;
  std::ifstream("/proc/self/statm") >> out.mapped >> out.resident;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return {out.mapped * page, out.resident * page};
}

}  // namespace kvbench
