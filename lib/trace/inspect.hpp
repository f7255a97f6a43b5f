// Passes over all values of a trace: their validation, and the norms of queries, keys and values by
// layer that `kvbench info` reports.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "core/types.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// One KV head of a pass over a trace: positions for TraceReader::read_head, and progress.
struct HeadVisit {
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
  std::size_t done = 0;   ///< heads finished, this one included
  std::size_t total = 0;  ///< heads of the trace
};

/// Called once per head, in file order.
using HeadCallback = std::function<void(const HeadVisit&, const KvHead&)>;

/// Reads all datasets, one KV head at a time, and passes each head (read_head) to `on_head` if
/// given. Throws InputError at the first value that is not finite or cannot be decoded.
void validate_values(const TraceReader& reader, const HeadCallback& on_head = {});

/// Euclidean norms of the rows of all heads of a layer. Non-negative, in the trace's own units.
struct NormRange {
  double min = 0;
  double median = 0;  ///< the lower of two middle norms
  double max = 0;
};

struct LayerNorms {
  NormRange keys;
  std::optional<NormRange> queries;  ///< absent if the layer stores none
  std::optional<NormRange> values;   ///< likewise
  bool in_float32 = true;            ///< fits_float32 (core/value_range.hpp)
};

/// Norms of every layer, [prompt][layer] in the order of TraceMeta. Validates every value as
/// validate_values does; holds one head and the norms of one layer. `progress`, if given, is called
/// after each head.
std::vector<std::vector<LayerNorms>> measure_norms(
    const TraceReader& reader, const std::function<void(const HeadVisit&)>& progress = {});

}  // namespace kvbench
