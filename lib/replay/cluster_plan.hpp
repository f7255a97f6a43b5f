// Options and plan of kvbench cluster: checked options, and KV heads in the order of the traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attention/row_set.hpp"
#include "cluster/study.hpp"
#include "core/types.hpp"
#include "replay/options.hpp"
#include "report/csv.hpp"
#include "trace/reader.hpp"

namespace kvbench {

enum class PointsFormat : std::uint8_t { csv, none };

constexpr std::string_view name(PointsFormat p) {
  switch (p) {
    case PointsFormat::csv: return "csv";
    case PointsFormat::none: return "none";
  }
  return "?";
}

/// Names and defaults as on the command line.
struct ClusterOptions : TraceOptions {
  std::vector<LayerTensor> what{LayerTensor::keys, LayerTensor::values};  ///< not queries
  StudyOptions study;
  PointsFormat points = PointsFormat::csv;
  std::vector<std::string> kept_by;  ///< OUT.kept.csv files
};

struct ClusterHead {
  std::size_t trace = 0;  ///< indices as of Unit
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
};

/// Uploads a matrix to where it is studied. The second argument limits the bytes of each scratch
/// array of a device.
using OpenRows = std::function<std::unique_ptr<RowSet>(MatrixView, std::size_t)>;

struct ClusterPlan {
  ClusterOptions options;
  std::vector<TraceReader> readers;
  std::vector<std::string> trace_names;  ///< file names without folders, unique
  std::vector<ClusterHead> heads;
  OpenRows open_rows = [](MatrixView rows, std::size_t) { return cpu_rows(rows); };
  int device_threads = 0;  ///< most threads that fit the device's memory; 0: no limit
  std::size_t scratch_bytes = std::size_t{1} << 26;

  const PromptMeta& prompt(const ClusterHead& h) const {
    return readers[h.trace].meta().prompts[h.prompt];
  }
  const LayerMeta& layer(const ClusterHead& h) const { return prompt(h).layers[h.layer]; }
  /// The sets of options.what that the head's layer stores. Keys are always stored.
  std::vector<LayerTensor> sets(const ClusterHead& h) const;
  Index width(const ClusterHead& h, LayerTensor what) const {
    return what == LayerTensor::values ? layer(h).dv : layer(h).d;
  }
  /// First fields of a head's lines: trace, prompt, layer, KV head.
  Fields place(const ClusterHead& h) const;
};

/// Opens the traces, whose layers may have keys alone, and lists the heads. Throws InputError (bad
/// option; a layer, head or prompt that no trace has; duplicate trace names) or IoError (no such
/// device, or too small for a head and a thread).
ClusterPlan make_cluster_plan(const ClusterOptions& options);

/// Sets device_threads and scratch_bytes for `memory` bytes of a device. Throws IoError if a head
/// and one thread do not fit, naming how many tokens would.
void fit_device(ClusterPlan& plan, std::uint64_t memory);

/// Returns the threads that fit the memory limit and the device with the largest head. Throws
/// InputError if none fits the limit.
int usable_threads(const ClusterPlan& plan);

}  // namespace kvbench
