// Conversion between a method's result and an entry of a caches file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "report/schema.hpp"
#include "trace/caches.hpp"

namespace kvbench {

/// Returns the entry of a result, without times and diagnostics. compressed_of() counts the same
/// bytes.
HeadCache cache_of(const KvHead& head, const Compressed& result);

/// The same with times and diagnostics from `row`. `reason`: why the result is degenerate, or "".
HeadCache exported(const KvHead& head, const Compressed& result, const Row& row,
                   const std::string& reason);

/// Bytes of an entry, counted as in docs/trace_format.md, for keys of width d, values of width dv.
struct CacheBytes {
  Index payload = 0;
  Index aux = 0;
  Index sum() const { return payload + aux; }
};
CacheBytes bytes_of(const HeadCache& cache, Index d, Index dv, DType dtype);

/// Returns an entry that is not infeasible as a method's result. `middle`: positions of the middle,
/// ascending. `where`: prefix of errors. Throws InputError if tokens repeat, are outside the middle
/// or differ from the head's rows; if keys or values are not numbers of the head's dtype though
/// counted so; if counts are impossible; if the head has a window and made entries no position
/// (docs/trace_format.md).
Compressed compressed_of(const HeadCache& cache, const KvHead& head, std::span<const Index> middle,
                         const std::string& where);

/// Serializes an entry for the log (core/archive.hpp).
std::vector<std::byte> to_bytes(const HeadCache& cache);
/// Inverse of to_bytes(). Throws InputError if the bytes are of another version.
HeadCache cache_from_bytes(std::span<const std::byte> bytes);

}  // namespace kvbench
