// The files of kvbench cluster. Contents: docs/schema.md.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cluster/study.hpp"
#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "replay/cluster_kept.hpp"
#include "replay/cluster_plan.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/schema.hpp"

namespace kvbench {

/// First columns of all tables: trace, prompt, layer, head.
const std::vector<ColumnDoc>& cluster_place_columns();

/// Own columns of each CSV table, by file name. x0 of points.csv stands for x0, x1, ...
const std::map<std::string, std::vector<ColumnDoc>>& cluster_columns();

/// Last columns of all tables except points.csv: model and dtype.
const std::vector<ColumnDoc>& cluster_origin_columns();

inline constexpr const char* kClusterManifest = "cluster.json";

/// All files that a run with any options may write into OUT, the manifest first.
std::vector<Output> cluster_files(const std::filesystem::path& folder);

/// All tables of a run, unpublished in OUT, which must exist. The rows of a head are appended to
/// each table at once (points: in blocks).
class ClusterTables {
 public:
  /// `run`: run_id of the manifest. Throws IoError.
  ClusterTables(const ClusterPlan& plan, std::string run);

  /// Stages a line of a table for the next add(): the head's place, with `number` as its head
  /// (norms.csv, attention.csv: a query head's), `what`, and the table's own cells.
  template <class... Values>
  void stage(const std::string& table, const ClusterHead& head, Index number, LayerTensor what,
             const Values&... values) {
    Fields line = plan_.place(head);
    line.back() = field_text(number);
    line.emplace_back(name(what));
    (line.push_back(field_text(values)), ...);
    staged_[table].push_back(std::move(line));
  }

  /// Writes the staged lines and the studies of `sets`. Fills the points' kept_by. Throws IoError;
  /// then no table has lines of the head.
  void add(const ClusterHead& head, const std::vector<LayerTensor>& sets,
           std::vector<Study>& studies, const KeptSets& kept);

  /// Heads that were added.
  Index heads() const { return heads_; }

  /// Replaces the files of OUT by these tables and the manifest, which gets their rows. `whole`: no
  /// head is missing, so it gets their SHA-256. Without a head keeps OUT as it is. Later calls and
  /// heads are ignored. Thread-safe. Throws IoError.
  void publish(Manifest& manifest, bool whole);

 private:
  void write_head(const ClusterHead& head, const std::vector<LayerTensor>& sets,
                  std::vector<Study>& studies, const KeptSets& kept);
  void append(const std::string& name, const ClusterHead& head, std::vector<Fields> lines);
  void add_points(const ClusterHead& head, LayerTensor what, const Points& points);

  const ClusterPlan& plan_;
  std::string run_;
  Index point_width_ = 1;
  std::map<std::string, StagedFile> files_;  // empty: published
  std::map<std::string, Index> rows_;
  std::map<std::string, std::vector<Fields>> staged_;  // by table
  std::atomic<Index> heads_ = 0;
  std::mutex mutex_;  // of add() and publish()
};

}  // namespace kvbench
