// What kvbench cluster is asked to do, checked, as a list of KV heads in the order of the traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/device_rows.hpp"
#include "cluster/study.hpp"
#include "core/types.hpp"
#include "report/csv.hpp"
#include "trace/reader.hpp"

namespace kvbench {

/// Everything that a user can ask for; names and defaults as on the command line.
struct ClusterOptions {
  std::vector<std::string> traces;  ///< layers need keys alone; rows of what is absent are left out
  std::string out;                  ///< folder
  std::vector<std::string> what{"keys", "values"};
  StudyOptions study;                ///< of the sets of `what`
  std::string points = "csv";        ///< csv | hdf5 | none
  std::vector<std::string> kept_by;  ///< OUT.kept.csv files; settings that share a name are refused
  std::vector<Index> layers;         ///< layer indices in the model; empty: all
  std::vector<Index> kv_heads;       ///< empty: all
  std::vector<std::string> prompts;  ///< empty: all
  std::string device = "cpu";        ///< make_cluster_plan sets it to what it names: cpu or cuda:i
  int threads = 0;                   ///< 0: all that the machine has; on a device at least 32
  std::uint64_t memory_limit = 0;    ///< bytes; 0: none
  bool overwrite = false;
};

/// What `--delta-rel` is where neither it nor `--deltas` is given. At 1 one cluster holds all.
std::vector<double> default_deltas_rel();

/// One KV head of one layer of one prompt: what is studied at a time.
struct ClusterHead {
  std::size_t trace = 0;  ///< positions in ClusterPlan::readers, its prompts and their layers
  std::size_t prompt = 0;
  std::size_t layer = 0;
  Index kv_head = 0;
};

/// Puts rows on a device; its arrays of scratch keep to so many bytes each.
using OpenRows = std::function<std::unique_ptr<DeviceRows>(MatrixView, std::size_t)>;

struct ClusterPlan {
  ClusterOptions options;  ///< as given, with the defaults of what was left open
  std::vector<TraceReader> readers;
  std::vector<std::string> trace_names;  ///< without folders, all different
  std::vector<ClusterHead> heads;
  OpenRows open_rows;      ///< empty: everything on the CPU
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

/// Settles how many threads `room` bytes of device memory, or the memory limit, allow, and their
/// scratch. Errors: IoError where a head and one thread do not fit, with how many tokens would.
void fit_device(ClusterPlan& plan, std::uint64_t room);

/// Threads that fit the memory limit and the device beside the largest head. Errors: InputError
/// where none fits the limit.
int usable_threads(const ClusterPlan& plan);

}  // namespace kvbench
