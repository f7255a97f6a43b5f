#include "replay/cluster_tables.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cluster/rows.hpp"
#include "metrics/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kPointsAtOnce = 1024;  // rows of points.csv that are text at the same time

Fields header(const std::string& table, Index point_width) {
  Fields out{"trace", "prompt", "layer", table == "norms.csv" ? "head" : "kv_head", "what"};
  const std::map<std::string, Fields> own{{"coverage.csv", {"k", "radius", "radius_rel", "center"}},
                                          {"delta.csv", {"delta", "n_prefix", "clusters"}},
                                          {"growth.csv", {"delta", "alpha", "r2"}},
                                          {"norms.csv", {"min", "p25", "p50", "p75", "p95", "max"}},
                                          {"points.csv", {"token", "is_center", "kept_by"}}};
  const Fields& columns = own.at(table);
  out.insert(out.end(), columns.begin(), columns.end());
  for (Index c = 0; table == "points.csv" && c < point_width; ++c) {
    out.push_back(fmt::format("x{}", c));
  }
  return out;
}

Fields joined(const Fields& first, const Fields& then) {
  Fields out = first;
  out.insert(out.end(), then.begin(), then.end());
  return out;
}

bool wanted(const std::string& table, const std::string& points) {
  return table == "points.csv" ? points == "csv" : table != "points.h5" || points == "hdf5";
}

}  // namespace

const Fields& cluster_table_names() {
  static const Fields names{"coverage.csv", "delta.csv",  "growth.csv",
                            "norms.csv",    "points.csv", "points.h5"};
  return names;
}

ClusterTables::ClusterTables(const ClusterPlan& plan) : plan_(plan) {
  const ClusterOptions& o = plan.options;
  for (const ClusterHead& h : plan.heads) {
    for (const Rows what : plan.sets(h)) {
      point_width_ = std::max(point_width_, point_columns(o.study, plan.width(h, what)));
    }
  }
  const auto mode = o.overwrite ? CsvWriter::Mode::overwrite : CsvWriter::Mode::create;
  for (const std::string& table : cluster_table_names()) {
    const std::filesystem::path path = std::filesystem::path(o.out) / table;
    if (!wanted(table, o.points)) {
      std::filesystem::remove(path);  // an earlier run's points do not belong to these tables
      continue;
    }
    rows_[table] = 0;
    if (table == "points.h5") {
      points_file_.emplace(path.string());
    } else {
      writers_.try_emplace(table, path, header(table, point_width_), mode);
    }
  }
}

void ClusterTables::add_norms(const ClusterHead& head, Rows what, Index number, MatrixView rows,
                              const DeviceRows* device) {
  Fields line = joined(plan_.place(head), {std::string(name(what))});
  line[3] = std::to_string(number);
  const std::vector<double> norms = row_norms(rows, device);
  for (const double p : {0.0, 0.25, 0.5, 0.75, 0.95, 1.0}) {
    line.push_back(number_text(percentile(norms, p)));
  }
  norms_.push_back(std::move(line));
}

void ClusterTables::add(const ClusterHead& head, const std::vector<Rows>& sets,
                        std::vector<Study>& studies, const KeptSets& kept) {
  std::vector<Fields> coverage;
  std::vector<Fields> delta;
  std::vector<Fields> growth;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const Fields place = joined(plan_.place(head), {std::string(name(sets[s]))});
    for (const CoveragePoint& p : studies[s].coverage.curve) {
      coverage.push_back(joined(place, {std::to_string(p.k), number_text(p.radius),
                                        number_text(p.radius_rel), std::to_string(p.center)}));
    }
    for (const DeltaGrowth& g : studies[s].growth) {
      for (const PrefixCount& c : g.counts) {
        delta.push_back(joined(
            place, {number_text(g.delta), std::to_string(c.n_prefix), std::to_string(c.clusters)}));
      }
      growth.push_back(
          joined(place, {number_text(g.delta), number_text(g.law.alpha), number_text(g.law.r2)}));
    }
    if (plan_.options.study.points) {
      kept.fill(plan_.place(head), studies[s].points);
      add_points(place, studies[s].points);
    }
  }
  append("coverage.csv", coverage);
  append("delta.csv", delta);
  append("growth.csv", growth);
  append("norms.csv", norms_);
  norms_.clear();
}

void ClusterTables::append(const std::string& table, const std::vector<Fields>& lines) {
  writers_.at(table).append(lines);
  rows_.at(table) += static_cast<Index>(lines.size());
}

void ClusterTables::add_points(const Fields& place, const Points& points) {
  if (points_file_) {
    points_file_->add(fmt::format("/{}", fmt::join(place, "/")), points);
    rows_.at("points.h5") += static_cast<Index>(points.tokens.size());
    return;
  }
  std::vector<Fields> lines;
  for (std::size_t i = 0; i < points.tokens.size(); ++i) {
    Fields line = joined(place, {std::to_string(points.tokens[i]), points.is_center[i] ? "1" : "0",
                                 points.kept_by[i]});
    // Coordinates are float32: the shortest text that reads back as the same float32.
    const auto x = points.x.view().row_span(static_cast<Index>(i));
    for (std::size_t c = 0; c < static_cast<std::size_t>(point_width_); ++c) {
      line.push_back(c < x.size() ? fmt::format("{}", x[c]) : "");
    }
    lines.push_back(std::move(line));
    if (lines.size() == kPointsAtOnce || i + 1 == points.tokens.size()) {
      append("points.csv", lines);
      lines.clear();
    }
  }
}

std::map<std::string, Index> ClusterTables::finish() {
  for (auto& [table, writer] : writers_) {
    writer.sync();
  }
  if (points_file_) {
    points_file_->close();
  }
  return rows_;
}

}  // namespace kvbench
