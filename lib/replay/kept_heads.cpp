#include "replay/kept_heads.hpp"

#include <utility>

namespace kvbench {
namespace {

Index float_bytes(Index n, Index d, Index dv, Index queries) {
  return 4 * (n * (d + dv) + queries * d);
}

std::uint64_t bytes_of(const KvHead& head) {
  return static_cast<std::uint64_t>(
      float_bytes(head.n(), head.d(), head.dv(), head.group() * head.nq()));
}

}  // namespace

Index head_bytes(const LayerMeta& l) {
  return float_bytes(l.n, l.d, l.dv, l.group() * l.nq);
}

void KeptHeads::keep(const Unit& unit, KvHead&& head) {
  const std::uint64_t bytes = bytes_of(head);
  const std::lock_guard lock(lock_);
  if (bytes <= left_ && heads_.try_emplace(unit.key(), std::move(head)).second) {
    left_ -= bytes;
  }
}

std::optional<KvHead> KeptHeads::take(const Unit& unit) {
  const std::lock_guard lock(lock_);
  auto node = heads_.extract(unit.key());
  if (node.empty()) {
    return std::nullopt;
  }
  left_ += bytes_of(node.mapped());
  return std::move(node.mapped());
}

}  // namespace kvbench
