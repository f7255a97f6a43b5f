// The files of kvbench cluster. Contents: docs/schema.md.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/attention_facts.hpp"
#include "cluster/key_facts.hpp"
#include "cluster/spectrum.hpp"
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

  /// Stages a line of norms.csv, quantiles of the rows' norms, for the next add(). `number`: of the
  /// query head or KV head.
  void add_norms(const ClusterHead& head, LayerTensor what, Index number,
                 const std::vector<double>& norms);

  /// Stages a line of keys.csv for the next add().
  void add_keys(const ClusterHead& head, const KeyFacts& facts);

  /// Stages a line of attention.csv for the next add().
  void add_attention(const ClusterHead& head, Index q_head, const AttentionFacts& facts);

  /// Stages a line of spectrum.csv for the next add().
  void add_spectrum(const ClusterHead& head, LayerTensor what, const Spectrum& spectrum);

  /// Writes the staged lines and the studies of `sets`. Fills the points' kept_by. Throws IoError.
  void add(const ClusterHead& head, const std::vector<LayerTensor>& sets,
           std::vector<Study>& studies, const KeptSets& kept);

  /// Heads that were added.
  Index heads() const { return heads_; }

  /// Replaces the files of OUT by these tables and the manifest, which gets their rows. `whole`: no
  /// head is missing, so it gets their SHA-256. Without a head keeps OUT as it is. Later calls and
  /// heads are ignored. Thread-safe. Throws IoError.
  void publish(Manifest& manifest, bool whole);

 private:
  void append(const std::string& name, const ClusterHead& head, std::vector<Fields> lines);
  void add_points(const ClusterHead& head, const Fields& place, const Points& points);

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
