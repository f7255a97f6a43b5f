#include "metrics/memory.hpp"

namespace kvbench {

MemoryFigures memory_figures(const Holding& holding, const KvHead& head, Index middle) {
  const Index key_bytes = head.d() * bytes_per_element(head.dtype);
  const Index uncompressed = head.n() - middle;
  const Index payload = holding.payload_bytes.value_or(
      (holding.pairs + holding.made_pairs) * head.pair_bytes() + holding.keys_only * key_bytes);
  MemoryFigures out;
  out.tokens_kept = uncompressed + holding.pairs + holding.quantised;
  out.middle_bytes = payload + holding.aux_bytes;
  out.bytes = uncompressed * head.pair_bytes() + out.middle_bytes;
  out.full_bytes = head.n() * head.pair_bytes();
  out.ratio = static_cast<double>(out.bytes) / static_cast<double>(out.full_bytes);
  const Index middle_full = middle * head.pair_bytes();
  out.middle_ratio =
      middle > 0 ? static_cast<double>(out.middle_bytes) / static_cast<double>(middle_full) : 1.0;
  out.aux_bytes = holding.aux_bytes;
  out.transient_bytes = holding.transient_bytes;
  return out;
}

}  // namespace kvbench
