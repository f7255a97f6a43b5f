#include "replay/cluster_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cluster/attention_facts.hpp"
#include "cluster/key_facts.hpp"
#include "cluster/pca.hpp"
#include "core/error.hpp"
#include "core/output_guard.hpp"
#include "metrics/error.hpp"
#include "replay/clock.hpp"
#include "replay/cluster_kept.hpp"
#include "replay/cluster_tables.hpp"
#include "replay/progress.hpp"
#include "replay/run.hpp"
#include "replay/selection.hpp"
#include "report/run_files.hpp"

namespace kvbench {
namespace {

namespace fs = std::filesystem;

void check_output(const ClusterOptions& o) {
  check_input(!fs::exists(o.out) || fs::is_directory(o.out),
              fmt::format("{}: is no folder, expected a folder or a new name", o.out));
  std::vector<fs::path> inputs(o.traces.begin(), o.traces.end());
  inputs.insert(inputs.end(), o.kept_by.begin(), o.kept_by.end());
  inputs.emplace_back(o.config);
  const std::vector<Output> files = cluster_files(o.out);
  check_outputs(inputs, files);
  for (const Output& file : files) {
    check_input(
        o.overwrite || !fs::exists(file.path),
        fmt::format("{}: exists, expected --overwrite or another folder", file.path.string()));
  }
}

KvHead read(const ClusterPlan& plan, const ClusterHead& h) {
  return plan.readers[h.trace].read_head(h.prompt, h.layer, h.kv_head);
}

const Matrix& rows_of(const KvHead& head, LayerTensor what) {
  return what == LayerTensor::keys ? head.k : head.v;
}

// Reads all heads and rotary tables: the reader rejects bad values.
void check_values(const ClusterPlan& plan, const std::atomic<bool>& stop) {
  Progress progress(static_cast<Index>(plan.heads.size()), "checking", "KV heads");
  std::shared_ptr<const RopeTables> rope;  // one table serves many heads
  for (const ClusterHead& h : plan.heads) {
    if (stop) {
      return;
    }
    read(plan, h);
    rope = plan.readers[h.trace].read_rope(h.prompt, h.layer);
    progress.tick();
  }
}

nlohmann::json configuration(const ClusterOptions& o) {
  nlohmann::json what = nlohmann::json::array();
  for (const LayerTensor rows : o.what) {
    what.push_back(name(rows));
  }
  return {{"traces", o.traces},
          {"what", what},
          {"k", o.study.centers},
          {"max_k", o.study.max_k},
          {"deltas", o.study.deltas},
          {"delta_rel", o.study.deltas_rel},
          {"max_clusters", o.study.max_clusters},
          {"points", name(o.points)},
          {"pca", o.study.components},
          {"max_points", o.study.max_points},
          {"kept_by", o.kept_by},
          {"layers", o.layers},
          {"kv_heads", o.heads},
          {"prompts", o.prompts},
          {"device", o.device},
          {"memory_limit", o.memory_limit}};
}

// The part of the configuration that determines the rows.
std::string row_configuration(nlohmann::json configuration) {
  configuration.erase("traces");
  configuration.erase("memory_limit");
  return configuration.dump();
}

void stage_norms(const ClusterHead& h, Index number, LayerTensor what,
                 const std::vector<double>& norms, ClusterTables& tables) {
  const auto p = [&](double share) { return percentile(norms, share); };
  tables.stage("norms.csv", h, number, what, p(0.0), p(0.25), p(0.5), p(0.75), p(0.95), p(1.0));
}

// Stages what is known of a head without its clusters. Returns the rows to study, on their backend.
std::vector<std::unique_ptr<RowSet>> open_head(const ClusterPlan& plan, const ClusterHead& h,
                                               const KvHead& head, int threads,
                                               ClusterTables& tables) {
  double largest_query = 0.0;
  for (Index g = 0; g < head.group(); ++g) {
    const Index q_head = h.kv_head * head.group() + g;
    const std::vector<double> norms = cpu_rows(head.q[g])->norms();
    largest_query = std::max(largest_query, std::ranges::max(norms));
    stage_norms(h, q_head, LayerTensor::queries, norms, tables);
    const AttentionFacts of_head = attention_facts(head, g, threads);
    tables.stage("attention.csv", h, q_head, LayerTensor::queries, of_head.entropy,
                 of_head.heavy_tokens, of_head.first_mass, of_head.near_mass);
  }
  const auto rope = plan.readers[h.trace].read_rope(h.prompt, h.layer);
  const KeyFacts keys = key_facts(head.k, rope.get(), largest_query, head.scale);
  tables.stage("keys.csv", h, h.kv_head, LayerTensor::keys, keys.rho, keys.mean_share,
               keys.mean_share_pre, keys.outlier_channels);
  const std::vector<LayerTensor> sets = plan.sets(h);
  std::vector<std::unique_ptr<RowSet>> out;
  for (const LayerTensor what : {LayerTensor::keys, LayerTensor::values}) {
    if (!plan.layer(h).has(what)) {
      continue;
    }
    const Matrix& rows = rows_of(head, what);
    const auto here = cpu_rows(rows);
    const Spectrum variances = spectrum(*here, rows.cols());
    tables.stage("spectrum.csv", h, h.kv_head, what, variances.participation,
                 variances.largest_share, variances.dims_90);
    if (std::ranges::find(sets, what) != sets.end()) {
      out.push_back(plan.open_rows(rows, plan.scratch_bytes));
      stage_norms(h, h.kv_head, what, out.back()->norms(), tables);
    } else {
      stage_norms(h, h.kv_head, what, here->norms(), tables);
    }
  }
  return out;
}

// Studies the heads until `stop`.
void study_heads(const ClusterPlan& plan, const KeptSets& kept, int threads,
                 const std::atomic<bool>& stop, ClusterTables& tables) {
  Progress progress(static_cast<Index>(plan.heads.size()), "cluster", "KV heads");
  for (const ClusterHead& h : plan.heads) {
    const KvHead head = read(plan, h);
    const std::vector<LayerTensor> sets = plan.sets(h);
    const auto row_sets = open_head(plan, h, head, threads, tables);
    std::vector<StudySet> studied;
    for (std::size_t s = 0; s < sets.size(); ++s) {
      studied.push_back({rows_of(head, sets[s]), row_sets[s].get()});
    }
    auto studies = study(studied, plan.options.study, threads, stop);
    if (!studies) {
      return;
    }
    tables.add(h, sets, *studies, kept);
    progress.tick();
  }
}

}  // namespace

ClusterResult run_cluster(const ClusterPlan& plan, const std::string& command_line,
                          const std::atomic<bool>& stop, const AtEnd& at_end) {
  const double start = seconds_now();
  const ClusterOptions& o = plan.options;
  const int threads = usable_threads(plan);
  const KeptSets kept(plan);
  check_output(o);
  check_values(plan, stop);
  Manifest manifest =
      start_manifest(command_line, configuration(o), o, o.traces, plan.readers, threads);
  manifest.schema = cluster_schema_version;
  manifest.run_id = run_id(row_configuration(manifest.configuration), trace_hashes(manifest));
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
  const FileLock lock(fs::path(o.out) / kClusterManifest);
  check_output(o);  // again: another run may have ended meanwhile
  remove_leftovers(cluster_files(o.out));
  ClusterTables tables(plan, manifest.run_id);
  // Lives until the tables are written: a signal may come meanwhile.
  const Ending ending(at_end,
                      [&, unfinished = manifest]() mutable { tables.publish(unfinished, false); });
  try {
    study_heads(plan, kept, threads, stop, tables);
  } catch (...) {
    tables.publish(manifest, false);  // finished heads stay; the manifest has no end time
    throw;
  }
  result.heads = tables.heads();
  result.interrupted = result.heads < static_cast<Index>(plan.heads.size());
  result.wall_s = seconds_now() - start;
  result.changed_traces = mark_changed(manifest, plan.readers);
  end_manifest(manifest, 0, 0, result.wall_s);
  tables.publish(manifest, !result.interrupted);
  result.rows = manifest.rows;
  return result;
}

}  // namespace kvbench
