// A PlanSpec with everything that running it needs: opened traces, loaded caches, a device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "attention/backend.hpp"
#include "replay/loaded_caches.hpp"
#include "replay/plan_spec.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Puts a head on a device. Each scratch array of the returned backend has at most so many bytes.
using OpenDevice = std::function<std::unique_ptr<Backend>(const KvHead&, std::size_t)>;

struct Plan : PlanSpec {
  std::vector<TraceReader> readers;  ///< of PlanSpec::traces
  /// evaluate: the caches that take the place of methods; else null.
  std::shared_ptr<const LoadedCaches> caches;

  OpenDevice open_device;  ///< empty: everything on the CPU
  std::size_t scratch_bytes = std::size_t{1} << 28;
  Index heads_at_once = 1;  ///< on a device: the most heads whose jobs run together

  const TraceReader& reader(const Unit& unit) const { return readers[unit.trace]; }
};

}  // namespace kvbench
