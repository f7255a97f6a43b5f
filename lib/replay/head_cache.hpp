// From what a method returned to an entry of a caches file, and back.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "report/schema.hpp"
#include "trace/caches.hpp"

namespace kvbench {

/// What `result` holds of `head`, with what it weighs: `compressed_of` gives the same bytes. What
/// only the job knows (times, diagnostics) is left open.
HeadCache cache_of(const KvHead& head, const Compressed& result);

/// The same with what only the job knows, for `--export-caches`: from `row`, and `reason`, why it
/// is no fair instance of the method (or empty).
HeadCache exported(const KvHead& head, const Compressed& result, const Row& row,
                   const std::string& reason);

/// Bytes that an entry holds of the middle of a head of width d and dv, as docs/trace_format.md
/// counts.
struct CacheBytes {
  Index payload = 0;
  Index aux = 0;
  Index sum() const { return payload + aux; }
};
CacheBytes bytes_of(const HeadCache& cache, Index d, Index dv, DType dtype);

/// An entry, none that is infeasible, as a method's result. `middle`: the positions that its tokens
/// may be, ascending; `where`: for refusals. Throws InputError where tokens come twice, are not in
/// the middle, or are not what the head holds; where keys and values are not numbers of the head's
/// type though they are counted so; where counts are impossible.
Compressed compressed_of(const HeadCache& cache, const KvHead& head, std::span<const Index> middle,
                         const std::string& where);

/// An entry as bytes, and back. Throws IoError where the bytes are none.
std::vector<std::byte> to_bytes(const HeadCache& cache);
HeadCache cache_from_bytes(std::span<const std::byte> bytes);

}  // namespace kvbench
