// KV heads between the check before a run and their jobs, so that most are read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "core/types.hpp"
#include "replay/plan_spec.hpp"

namespace kvbench {

/// Bytes of a layer's KV head in memory: keys, values and its queries, in float32.
Index head_bytes(const LayerMeta& layer);

/// Holds KV heads. Thread-safe.
class KeptHeads {
 public:
  explicit KeptHeads(std::uint64_t bytes) : left_(bytes) {}

  /// Keeps the unit's head if it fits the bytes that are left.
  void keep(const Unit& unit, KvHead&& head);
  /// Returns the unit's head and no longer keeps it; nullopt if it is not kept.
  std::optional<KvHead> take(const Unit& unit);

 private:
  std::mutex lock_;
  std::map<UnitKey, KvHead> heads_;
  std::uint64_t left_;
};

}  // namespace kvbench
