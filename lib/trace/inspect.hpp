// What `kvbench info` reports about values: norms of queries, keys and values by layer.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "trace/reader.hpp"
#include "trace/validate.hpp"

namespace kvbench {

/// Euclidean norms of the rows of all heads of a layer. Non-negative, in the trace's own units.
struct NormRange {
  double min = 0;
  double median = 0;  ///< the lower one of the two middle norms if their number is even
  double max = 0;
};

struct LayerNorms {
  NormRange keys;
  std::optional<NormRange> queries;  ///< absent where the layer stores none
  std::optional<NormRange> values;   ///< the same
};

/// Norms of every layer, [prompt][layer] in the order of TraceMeta. Reads, and so validates, every
/// value; holds one head and the norms of one layer. `progress`, if given, is called after each
/// head. Throws as validate_values.
std::vector<std::vector<LayerNorms>> measure_norms(
    const TraceReader& reader, const std::function<void(const HeadVisit&)>& progress = {});

}  // namespace kvbench
