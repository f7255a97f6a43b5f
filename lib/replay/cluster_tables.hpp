// The files that kvbench cluster writes; docs/schema.md says what is in them.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/key_facts.hpp"
#include "cluster/study.hpp"
#include "core/output_guard.hpp"
#include "replay/cluster_kept.hpp"
#include "replay/cluster_plan.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"
#include "trace/points_file.hpp"

namespace kvbench {

/// The columns that all tables begin with: where a line comes from.
const std::vector<ColumnDoc>& cluster_place_columns();

/// Each CSV table's own columns, by file name. The last of points.csv, x0, stands for x0, x1, ...
const std::map<std::string, std::vector<ColumnDoc>>& cluster_columns();

/// What all tables but points.csv end with, behind run_id and row_crc: what the rows are of.
const std::vector<ColumnDoc>& cluster_origin_columns();

inline constexpr const char* kClusterManifest = "cluster.json";

/// The folder OUT/unfinished, where the tables are until the run ends.
std::filesystem::path cluster_stage(const ClusterOptions& options);

/// All files that a run of any options may write into OUT, the manifest first, and the same in
/// cluster_stage().
std::vector<Output> cluster_files(const ClusterOptions& options);

/// Gives each file of cluster_stage() that is there its name in OUT, the manifest last, and removes
/// the folder. Throws IoError.
void publish_cluster(const ClusterOptions& options);

/// All tables of a run. The rows of a head are appended with one write to each table (points: in
/// blocks), when all of them are there.
class ClusterTables {
 public:
  /// Makes the files in cluster_stage(), which exists, with their headers. Errors: InputError,
  /// IoError.
  /// `run`: the manifest's.
  ClusterTables(const ClusterPlan& plan, const std::string& run);

  /// Takes the quantiles of the norms of `rows`, head `number` of `what`, for the next add().
  void add_norms(const ClusterHead& head, Rows what, Index number, const RowSet& rows);

  /// Takes the line of keys.csv for the next add().
  void add_keys(const ClusterHead& head, const KeyFacts& facts);

  /// Writes the head: the lines taken, and the studies of `sets`. Fills the points' kept_by.
  void add(const ClusterHead& head, const std::vector<Rows>& sets, std::vector<Study>& studies,
           const KeptSets& kept);

  /// Puts everything on the disk; rows by table.
  std::map<std::string, Index> finish();

  /// SHA-256 of the CSV tables by file name, for the manifest.
  std::map<std::string, std::string> sha256() const;

 private:
  void append(const std::string& name, const ClusterHead& head, std::vector<Fields> lines);
  void add_points(const ClusterHead& head, const Fields& place, const Points& points);

  const ClusterPlan& plan_;
  Index point_width_ = 1;                     // columns x0, x1, ... of the widest rows
  std::map<std::string, CsvWriter> writers_;  // by table
  std::optional<PointsFile> points_file_;
  std::map<std::string, Index> rows_;  // by table
  std::vector<Fields> norms_;          // of the head in work
  std::vector<Fields> keys_;           // the same
};

}  // namespace kvbench
