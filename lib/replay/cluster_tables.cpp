#include "replay/cluster_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "report/run_files.hpp"
#include "report/run_tables.hpp"
#include "trace/file_kinds.hpp"

namespace kvbench {
namespace {

constexpr const char* kPointsTable = "points.csv";
constexpr std::size_t kPointsAtOnce = 1024;  // most rows of points.csv in memory

Fields header(const std::string& table, Index point_width) {
  Fields out;
  for (const ColumnDoc& column : cluster_place_columns()) {
    out.emplace_back(column.name);
  }
  if (table == "norms.csv" || table == "attention.csv") {
    out[3] = "head";
  }
  for (const ColumnDoc& column : cluster_columns().at(table)) {
    out.emplace_back(column.name);
  }
  for (Index c = 1; table == kPointsTable && c < point_width; ++c) {
    out.push_back(fmt::format("x{}", c));
  }
  out.insert(out.end(), {"run_id", "row_crc"});
  if (table != kPointsTable) {
    for (const ColumnDoc& column : cluster_origin_columns()) {
      out.emplace_back(column.name);
    }
  }
  return out;
}

}  // namespace

const std::vector<ColumnDoc>& cluster_place_columns() {
  static const std::vector<ColumnDoc> columns{
      {"trace", "", "trace file's name without folders"},
      {"prompt", "", "prompt id inside the trace"},
      {"layer", "", "layer's index in the model"},
      {"kv_head", "",
       "KV head, 0-based; in `norms.csv` and `attention.csv` the column is `head`: a query head "
       "for "
       "queries, otherwise a KV head"},
      {"what", "",
       "`keys` or `values`; in `norms.csv` also `queries`, in `attention.csv` only these"}};
  return columns;
}

const std::vector<ColumnDoc>& cluster_origin_columns() {
  static const std::vector<ColumnDoc> columns{
      {"model", "", "model, as the trace names it; empty if it names none"},
      {"dtype", "", "element type of the trace's cache: `float16`, `bfloat16` or `float32`"}};
  return columns;
}

const std::map<std::string, std::vector<ColumnDoc>>& cluster_columns() {
  static const std::map<std::string, std::vector<ColumnDoc>> columns{
      {"attention.csv",
       {{"entropy", "nats", "-sum p log p over the tokens seen"},
        {"heavy_tokens", "tokens", "fewest tokens that have 90 % of the attention on tokens"},
        {"first_mass", "fraction", "attention on the first 16 tokens"},
        {"near_mass", "fraction",
         "attention on the query's own token and the 255 before it, without the first 16"}}},
      {"coverage.csv",
       {{"k", "centres", "number of centres"},
        {"radius", "distance",
         "largest distance of any token to its nearest centre; at most twice the best possible"},
        {"radius_rel", "fraction",
         "`radius` over the radius at `k` = 1; 0 where both are 0 (all tokens equal, or only one)"},
        {"center", "token", "position of the `k`-th centre"}}},
      {"delta.csv",
       {{"delta", "distance",
         "absolute, whether it came from `--deltas` or from `--delta-rel` (times the head's own "
         "radius at `k` = 1)"},
        {"n_prefix", "tokens",
         "length of the prefix: 16, 32, 64, ... below the number of tokens, and that number"},
        {"clusters", "clusters", "clusters that the prefix opens"}}},
      {"growth.csv",
       {{"delta", "distance", "as in `delta.csv`"},
        {"alpha", "",
         "exponent of clusters ~ n^alpha: below 1 is sublinear; 0 where all counts are equal; "
         "`nan` of fewer than two rows"},
        {"r2", "fraction",
         "share of the variance of log `clusters` that the line explains; `nan` where all counts "
         "are equal or fewer than two"}}},
      {"keys.csv",
       {{"rho", "", "s max |q| max |k|, over the stored queries of the group: no logit is larger"},
        {"mean_share", "fraction",
         "squared norm of the mean key over the keys' mean squared norm; 0 of zero keys"},
        {"mean_share_pre", "fraction",
         "the same before the rotary embedding; `nan` without rotary tables"},
        {"outlier_channels", "channels",
         "channels whose root mean square is above 4 times the median channel's"}}},
      {"norms.csv",
       {{"min", "distance", "minimum"},
        {"p25", "distance", "25th percentile by linear interpolation, as `rel_error_p95`"},
        {"p50", "distance", "median"},
        {"p75", "distance", "75th percentile"},
        {"p95", "distance", "95th percentile"},
        {"max", "distance", "maximum: the theorems' r"}}},
      {"points.csv",
       {{"token", "token", "position, 0-based, ascending"},
        {"is_center", "0 or 1", "one of the first `--k` centres of `coverage.csv`"},
        {"kept_by", "",
         "settings of `--kept-by` files that held the token exactly at their last recorded step, "
         "separated by `;`; empty: none"},
        {"x0", "distance",
         "first coordinate, float32; `x1`, `x2`, ... follow: the first `--pca` principal "
         "components, or the row itself with `--pca 0`; empty where the head's rows are narrower "
         "than the widest of the table"}}},
      {"spectrum.csv",
       {{"participation", "dimensions",
         "(sum v)^2 / sum v^2 over the variances v along principal components; 0 of equal rows"},
        {"largest_share", "fraction", "the largest v over their sum; 0 of equal rows"},
        {"dims_90", "dimensions",
         "fewest components that have 90 % of the variance; 0 of equal rows"}}}};
  return columns;
}

std::vector<Output> cluster_files(const std::filesystem::path& folder) {
  std::vector<Output> out{{folder / kClusterManifest, manifest_kind()}};
  for (const auto& [table, columns] : cluster_columns()) {
    out.push_back({folder / table, table_kind("a table " + table, header(table, 1))});
  }
  return out;
}

ClusterTables::ClusterTables(const ClusterPlan& plan, std::string run)
    : plan_(plan), run_(std::move(run)) {
  const ClusterOptions& o = plan.options;
  for (const ClusterHead& h : plan.heads) {
    for (const LayerTensor what : plan.sets(h)) {
      point_width_ = std::max(point_width_, point_columns(o.study, plan.width(h, what)));
    }
  }
  for (const auto& [table, columns] : cluster_columns()) {
    if (table != kPointsTable || o.points == PointsFormat::csv) {
      const auto path = std::filesystem::path(o.out) / table;
      files_.try_emplace(table, path).first->second.put(csv_line(header(table, point_width_)));
      rows_[table] = 0;
    }
  }
}

void ClusterTables::add(const ClusterHead& head, const std::vector<LayerTensor>& sets,
                        std::vector<Study>& studies, const KeptSets& kept) {
  const std::lock_guard lock(mutex_);
  if (files_.empty()) {
    return;
  }
  std::map<std::string, off_t> sizes;
  for (const auto& [table, file] : files_) {
    sizes[table] = file.size();
  }
  const std::map<std::string, Index> rows = rows_;
  try {
    write_head(head, sets, studies, kept);
  } catch (...) {  // as of a full disk: publish() follows, and no table may have a part of the head
    for (auto& [table, file] : files_) {
      file.cut(sizes.at(table));
    }
    rows_ = rows;
    throw;
  }
  ++heads_;
}

void ClusterTables::write_head(const ClusterHead& head, const std::vector<LayerTensor>& sets,
                               std::vector<Study>& studies, const KeptSets& kept) {
  for (std::size_t s = 0; s < sets.size(); ++s) {
    for (const CoveragePoint& p : studies[s].coverage.curve) {
      stage("coverage.csv", head, head.kv_head, sets[s], p.k, p.radius, p.radius_rel, p.center);
    }
    for (const DeltaGrowth& g : studies[s].growth) {
      for (const PrefixCount& c : g.counts) {
        stage("delta.csv", head, head.kv_head, sets[s], g.delta, c.n_prefix, c.clusters);
      }
      stage("growth.csv", head, head.kv_head, sets[s], g.delta, g.law.alpha, g.law.r2);
    }
    if (plan_.options.study.points) {
      kept.fill(plan_.place(head), studies[s].points);
      add_points(head, sets[s], studies[s].points);
    }
  }
  for (auto& [table, lines] : std::exchange(staged_, {})) {
    append(table, head, std::move(lines));
  }
}

void ClusterTables::append(const std::string& table, const ClusterHead& head,
                           std::vector<Fields> lines) {
  const TraceMeta& trace = plan_.readers[head.trace].meta();
  for (Fields& fields : lines) {
    fields.insert(fields.end(), {run_, ""});
    if (table != kPointsTable) {
      fields.insert(fields.end(), {trace.model, std::string(name(trace.dtype))});
    }
  }
  StagedFile& file = files_.at(table);
  for (const Fields& fields : lines) {
    file.put(csv_line(fields));
  }
  file.flush();
  rows_.at(table) += static_cast<Index>(lines.size());
}

void ClusterTables::add_points(const ClusterHead& head, LayerTensor what, const Points& points) {
  std::vector<Fields>& lines = staged_[kPointsTable];
  for (std::size_t i = 0; i < points.tokens.size(); ++i) {
    stage(kPointsTable, head, head.kv_head, what, points.tokens[i], points.is_center[i] ? "1" : "0",
          points.kept_by[i]);
    // Shortest text that reads back as the same float32.
    const auto x = points.x.view().row_span(static_cast<Index>(i));
    for (std::size_t c = 0; c < static_cast<std::size_t>(point_width_); ++c) {
      lines.back().push_back(c < x.size() ? fmt::format("{}", x[c]) : "");
    }
    if (lines.size() == kPointsAtOnce) {
      append(kPointsTable, head, std::exchange(lines, {}));
    }
  }
}

void ClusterTables::publish(Manifest& manifest, bool whole) {
  const std::lock_guard lock(mutex_);
  if (heads_ == 0 || files_.empty()) {
    return;
  }
  std::vector<std::pair<std::string, std::filesystem::path>> unpublished;
  manifest.rows = 0;
  for (auto& [table, file] : files_) {
    file.close();
    unpublished.emplace_back(table, file.partial());
    manifest.rows += rows_.at(table);
  }
  if (whole) {
    manifest.sha256 = sha256_of_files(unpublished);
  }
  nlohmann::json json = manifest_to_json(manifest);
  json["tables"] = rows_;
  StagedFile manifest_file(std::filesystem::path(plan_.options.out) / kClusterManifest,
                           json_text(json));
  remove_files(cluster_files(plan_.options.out));  // also tables that this run does not write
  for (auto& [table, file] : files_) {
    file.publish();
  }
  files_.clear();
  manifest_file.publish();
}

}  // namespace kvbench
