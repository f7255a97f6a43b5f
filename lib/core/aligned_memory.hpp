// Memory of vectors and matrices.
#pragma once

#include <cstddef>

namespace kvbench {

/// `bytes` of memory at an address that is a multiple of 64. Linux is asked for huge pages for
/// large ones: a matrix of 64 MiB takes 32 page faults, not 16,384. Raises std::bad_alloc.
void* allocate_aligned(std::size_t bytes);
/// `bytes` as at the allocation.
void free_aligned(void* memory, std::size_t bytes) noexcept;

}  // namespace kvbench
