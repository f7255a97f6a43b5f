#include "core/isa.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>

#include "core/error.hpp"

namespace kvbench {
namespace {

Isa chosen() {
  const char* wanted = std::getenv("KVBENCH_ISA");
  if (wanted == nullptr || *wanted == '\0') {
    return runs(Isa::avx512) ? Isa::avx512 : Isa::avx2;
  }
  for (const Isa one : {Isa::avx2, Isa::avx512}) {
    if (wanted == name(one)) {
      if (!runs(one)) {
        throw InputError(
            fmt::format("KVBENCH_ISA: got {}, which this processor does not have; "
                        "expected avx2",
                        wanted));
      }
      return one;
    }
  }
  throw InputError(fmt::format("KVBENCH_ISA: got '{}', expected avx2 or avx512", wanted));
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> set = chosen();
  return set;
}

}  // namespace

bool runs(Isa isa) {
#if defined(__x86_64__)
  return isa == Isa::avx2 ||
         (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl"));
#else
  return isa == Isa::avx2;
#endif
}

Isa isa() {
  return current().load(std::memory_order_relaxed);
}

void set_isa(Isa isa) {
  current().store(isa, std::memory_order_relaxed);
}

}  // namespace kvbench
