// A PlanSpec with what its run needs: opened traces, loaded caches, a device.
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

/// Uploads a head to a device. The second argument limits the bytes of each scratch array.
using OpenDevice = std::function<std::unique_ptr<Backend>(const KvHead&, std::size_t)>;

struct Plan : PlanSpec {
  std::vector<TraceReader> readers;            ///< in the order of PlanSpec::traces
  std::shared_ptr<const LoadedCaches> caches;  ///< evaluate: replace the methods; otherwise null

  OpenDevice open_device;                            ///< empty: CPU
  std::size_t scratch_bytes = std::size_t{1} << 28;  ///< argument of open_device
  Index heads_at_once = 1;  ///< device: maximum number of heads whose jobs run together

  const TraceReader& reader(const Unit& unit) const { return readers[unit.trace]; }
};

}  // namespace kvbench
