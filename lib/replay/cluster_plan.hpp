// What kvbench cluster is asked to do, checked, as a list of KV heads in the order of the traces.
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

/// Which file the points go into.
enum class PointsFormat : std::uint8_t { csv, hdf5, none };

constexpr std::string_view name(PointsFormat p) {
  switch (p) {
    case PointsFormat::csv: return "csv";
    case PointsFormat::hdf5: return "hdf5";
    case PointsFormat::none: return "none";
  }
  return "?";
}

/// Everything that a user can ask for; names and defaults as on the command line.
struct ClusterOptions : ResourceOptions {
  std::vector<std::string> traces;  ///< layers need keys alone; rows of what is absent are left out
  std::string config;               ///< file that options came from; it is never written over
  std::string out;                  ///< folder
  std::vector<Rows> what{Rows::keys, Rows::values};  ///< not queries
  StudyOptions study;                                ///< of the sets of `what`
  PointsFormat points = PointsFormat::csv;
  std::vector<std::string> kept_by;  ///< OUT.kept.csv files; settings that share a name are refused
  std::vector<Index> layers;         ///< layer indices in the model; empty: all
  std::vector<Index> kv_heads;       ///< empty: all
  /// Parts of `layers` and `kv_heads` that were asked for as ranges: only some must be in a trace.
  std::vector<Range> layer_ranges, head_ranges;
  std::vector<std::string> prompts;  ///< empty: all
  bool overwrite = false;
};

/// One KV head of one layer of one prompt: what is studied at a time.
struct ClusterHead {
  std::size_t trace = 0;  ///< positions in ClusterPlan::readers, its prompts and their layers
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
};

/// Puts a matrix where it is computed on; a device's arrays of scratch keep to so many bytes each.
using OpenRows = std::function<std::unique_ptr<RowSet>(MatrixView, std::size_t)>;

struct ClusterPlan {
  ClusterOptions options;  ///< as given, with the defaults of what was left open
  std::vector<TraceReader> readers;
  std::vector<std::string> trace_names;  ///< without folders, all different
  std::vector<ClusterHead> heads;
  OpenRows open_rows = [](MatrixView rows, std::size_t) { return cpu_rows(rows); };
  int device_threads = 0;  ///< whose tasks fit a device's memory; 0: any number
  std::size_t scratch_bytes = std::size_t{1} << 26;

  const PromptMeta& prompt(const ClusterHead& h) const {
    return readers[h.trace].meta().prompts[h.prompt];
  }
  const LayerMeta& layer(const ClusterHead& h) const { return prompt(h).layers[h.layer]; }
  /// The sets of `what` that the head's layer stores; keys are always there.
  std::vector<Rows> sets(const ClusterHead& h) const;
  Index width(const ClusterHead& h, Rows what) const {
    return what == Rows::values ? layer(h).dv : layer(h).d;
  }
  /// Where a head's rows come from: the first fields of each table.
  Fields place(const ClusterHead& h) const;
};

/// Opens the traces and lists the heads. Errors: InputError (bad option, a layer, head or prompt
/// that no trace has, two traces of one name), IoError (device absent, or too small for a head and
/// one thread).
ClusterPlan make_cluster_plan(const ClusterOptions& options);

/// Chooses how many threads `memory` bytes of a device allow, and their scratch. Errors: IoError
/// where a head and one thread do not fit, with how many tokens would.
void fit_device(ClusterPlan& plan, std::uint64_t memory);

/// Threads that fit the memory limit and the device beside the largest head. Errors: InputError
/// where none fits the limit.
int usable_threads(const ClusterPlan& plan);

}  // namespace kvbench
