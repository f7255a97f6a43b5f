#include "replay/cluster_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>

#include "attention/device.hpp"
#include "core/error.hpp"
#include "replay/cluster_kept.hpp"
#include "replay/cluster_tables.hpp"
#include "replay/selection.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/progress.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

void check_output(const ClusterOptions& o) {
  check_input(!fs::exists(o.out) || fs::is_directory(o.out),
              fmt::format("{}: is no folder, expected one, or a name that is free", o.out));
  Fields names = cluster_table_names();
  names.emplace_back("cluster.json");
  for (const std::string& name : names) {
    check_input(o.overwrite || !fs::exists(fs::path(o.out) / name),
                fmt::format("{}: exists, expected --overwrite to start anew, or another folder",
                            (fs::path(o.out) / name).string()));
  }
}

// Hands every stored dataset's rows of the head to `on_rows`, one at a time.
template <class OnRows>
void each_rows(const ClusterPlan& plan, const ClusterHead& h, const OnRows& on_rows) {
  const TraceReader& reader = plan.readers[h.trace];
  const LayerMeta& l = plan.layer(h);
  for (Index g = 0; g < l.group(); ++g) {
    const Index q_head = h.kv_head * l.group() + g;
    on_rows(Rows::queries, q_head, reader.read_rows(h.prompt, h.layer, Rows::queries, q_head));
  }
  for (const Rows what : {Rows::keys, Rows::values}) {
    if (l.has(what)) {
      on_rows(what, h.kv_head, reader.read_rows(h.prompt, h.layer, what, h.kv_head));
    }
  }
}

// Reading checks the values; a bad one must be found before the first file is made.
void validate_values(const ClusterPlan& plan, const std::atomic<bool>& stop) {
  Progress progress(static_cast<Index>(plan.heads.size()), "checking");
  for (const ClusterHead& h : plan.heads) {
    if (stop) {
      return;
    }
    each_rows(plan, h, [](Rows, Index, const Matrix&) {});
    progress.tick();
  }
}

nlohmann::json configuration(const ClusterOptions& o) {
  return {{"traces", o.traces},
          {"what", o.what},
          {"k", o.study.centers},
          {"max_k", o.study.max_k},
          {"deltas", o.study.deltas},
          {"delta_rel", o.study.deltas_rel},
          {"max_clusters", o.study.max_clusters},
          {"points", o.points},
          {"pca", o.study.components},
          {"max_points", o.study.max_points},
          {"kept_by", o.kept_by},
          {"layers", o.layers},
          {"kv_heads", o.kv_heads},
          {"prompts", o.prompts},
          {"device", o.device},
          {"memory_limit", o.memory_limit}};
}

// cluster.json: as the manifest of a result file, and the rows of each table.
void write_cluster_manifest(const fs::path& folder, const Manifest& manifest,
                            const std::map<std::string, Index>& tables) {
  nlohmann::json json = manifest_to_json(manifest);
  json["tables"] = tables;
  write_file_atomically(folder / "cluster.json",
                        json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

ClusterResult run_cluster(const ClusterOptions& options, const std::string& command_line,
                          const std::atomic<bool>& stop) {
  return run_cluster(make_cluster_plan(options), command_line, stop);
}

ClusterResult run_cluster(const ClusterPlan& plan, const std::string& command_line,
                          const std::atomic<bool>& stop) {
  const auto start = std::chrono::steady_clock::now();
  const ClusterOptions& o = plan.options;
  const int threads = usable_threads(plan);
  const KeptSets kept(plan);
  check_output(o);
  validate_values(plan, stop);
  Manifest manifest = begin_manifest(command_line, configuration(o));
  manifest.schema = cluster_schema_version;
  manifest.threads = threads;
  if (o.device != "cpu") {
    const DeviceInfo info = device_info(choose_device(o.device).ordinal);
    manifest.gpu = info.model;
    manifest.driver = info.driver;
  }
  for (const std::string& trace : o.traces) {
    add_trace(manifest, trace);
  }
  ClusterResult result;
  result.interrupted = stop;
  if (result.interrupted) {
    return result;
  }
  std::error_code error;
  fs::create_directories(o.out, error);
  if (error) {
    throw IoError(fmt::format("{}: cannot make the folder: {}", o.out, error.message()));
  }
  ClusterTables tables(plan);
  write_cluster_manifest(o.out, manifest, {});
  Progress progress(static_cast<Index>(plan.heads.size()), "cluster");
  for (const ClusterHead& h : plan.heads) {
    const std::vector<Rows> sets = plan.sets(h);
    std::vector<Matrix> rows;
    std::vector<std::unique_ptr<DeviceRows>> devices;
    each_rows(plan, h, [&](Rows what, Index number, Matrix read) {
      const bool studied = std::count(sets.begin(), sets.end(), what) > 0;
      if (studied && plan.open_rows) {
        devices.push_back(plan.open_rows(read, plan.scratch_bytes));
      }
      // What is not studied is not worth the way to a device.
      tables.add_norms(h, what, number, read,
                       studied && plan.open_rows ? devices.back().get() : nullptr);
      if (studied) {
        rows.push_back(std::move(read));
      }
    });
    auto studies =
        study(std::vector<MatrixView>(rows.begin(), rows.end()), o.study, threads, stop, devices);
    if (!studies) {
      break;
    }
    tables.add(h, sets, *studies, kept);
    ++result.heads;
    progress.tick();
  }
  const std::map<std::string, Index> written = tables.finish();
  for (const auto& [table, count] : written) {
    result.rows += count;
  }
  result.interrupted = result.heads < static_cast<Index>(plan.heads.size());
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  end_manifest(manifest, result.rows, 0, result.wall_s);
  write_cluster_manifest(o.out, manifest, written);
  return result;
}

}  // namespace kvbench
