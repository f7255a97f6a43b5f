#include "core/aligned_memory.hpp"

#include <sys/mman.h>

#include <new>

namespace kvbench {
namespace {

constexpr std::align_val_t kLine{64};
constexpr std::size_t kHugePage = std::size_t{1} << 21;
constexpr std::size_t kLarge = 4 * kHugePage;

}  // namespace

void* allocate_aligned(std::size_t bytes) {
  if (bytes < kLarge) {
    return ::operator new(bytes, kLine);
  }
  void* memory = ::operator new (bytes, std::align_val_t{kHugePage});
#ifdef MADV_HUGEPAGE
  // Whole pages only, so that no more memory becomes resident. A kernel without huge pages refuses.
  (void)::madvise(memory, bytes - bytes % kHugePage, MADV_HUGEPAGE);
#endif
  return memory;
}

void free_aligned(void* memory, std::size_t bytes) noexcept {
  ::operator delete (memory, bytes < kLarge ? kLine : std::align_val_t{kHugePage});
}

}  // namespace kvbench
