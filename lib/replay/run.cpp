#include "replay/run.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "core/error.hpp"
#include "gpu/device.hpp"
#include "replay/clock.hpp"
#include "replay/executor.hpp"
#include "replay/layer_errors.hpp"
#include "replay/progress.hpp"
#include "replay/resources.hpp"
#include "report/csv.hpp"
#include "report/row_crc.hpp"
#include "report/schema.hpp"

namespace kvbench {

nlohmann::json configuration(const PlanSpec& plan) {
  const ReplayOptions& o = plan.options;
  nlohmann::json algorithms = nlohmann::json::array();
  for (const Variant& v : plan.variants) {
    algorithms.push_back({{"name", v.label()}, {"params", v.label_params()}});
  }
  const nlohmann::json per_query =
      o.per_query == PerQuery::none ? nlohmann::json(false) : nlohmann::json(name(o.per_query));
  return {{"traces", o.traces},
          {"algorithms", algorithms},
          {"policies", o.policies},
          {"budgets", o.budgets},
          {"seeds", seeds_text(parse_seeds(o.seeds))},
          {"layers", o.layers},
          {"heads", o.heads},
          {"prompts", o.prompts},
          {"protocol", name(o.protocol)},
          {"sink", o.sink},
          {"recent", o.recent},
          {"queries", o.queries},
          {"scores", name(o.scores)},
          {"device", o.device},
          {"precision", name(o.precision)},
          {"memory_limit", o.memory_limit},
          {"eval_every", o.eval_every},
          {"repeat", o.repeat},
          {"kept", o.kept},
          {"per_query", per_query},
          {"export_caches", o.export_caches},
          {"caches", o.caches},
          {"layer_errors", !plan.error_layers.empty()},
          {"layer_errors_without", layers_without_error(plan)}};
}

Manifest start_manifest(const std::string& command_line, nlohmann::json configuration,
                        const ResourceOptions& options, const std::vector<std::string>& traces,
                        const std::vector<TraceReader>& readers, int threads) {
  Manifest out = begin_manifest(command_line, std::move(configuration));
  out.threads = threads;
  if (options.on_device()) {
    const DeviceInfo info = device_info(choose_device(options.device).ordinal);
    out.gpu = info.model;
    out.driver = info.driver;
  }
  for (std::size_t i = 0; i < traces.size(); ++i) {
    const TraceReader& reader = readers[i];
    const TraceMeta& meta = reader.meta();
    out.traces.push_back(
        {traces[i], reader.sha256(), meta.file_bytes, meta.model, std::string(name(meta.dtype))});
    // The values that were checked may be others now.
    if (!reader.unchanged()) {
      throw InputError(fmt::format(
          "{}: modified since it was opened, expected a trace that does not change", traces[i]));
    }
  }
  return out;
}

std::vector<std::string> mark_changed(Manifest& manifest, const std::vector<TraceReader>& readers) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    TraceFile& trace = manifest.traces[i];
    trace.changed = !readers[i].unchanged() && readers[i].sha256() != trace.sha256;
    if (trace.changed) {
      out.push_back(trace.path);
    }
  }
  return out;
}

RunResult run_plan(const Plan& plan, const std::string& command_line,
                   const std::atomic<bool>& stop) {
  const double start = seconds_now();
  const ReplayOptions& o = plan.options;
  const int threads = usable_threads(plan);
  Executor executor(plan, threads, stop);
  ResultStore::check(plan);
  executor.check_values();

  Manifest manifest =
      start_manifest(command_line, configuration(plan), o, o.traces, plan.readers, threads);
  const Range jobs = plan.shard_jobs();
  manifest.plan =
      PlanInfo{plan.hash(), plan.row_range({0, plan.jobs()}).size(), {plan.row_range(jobs)}};
  manifest.run_id = run_id(manifest.plan->hash, trace_hashes(manifest));
  if (o.shard_count > 1) {
    manifest.shard = Shard{o.shard_index, o.shard_count};
  }
  RunResult result;
  result.interrupted = stop;
  if (result.interrupted) {
    return result;
  }
  ResultStore store(plan, manifest);
  result.resumed = store.rows_resumed();
  manifest.rows_resumed = result.resumed;
  write_manifest(o.out, manifest);

  {
    Progress progress(plan.row_range(jobs).size(), "replay", "rows");
    progress.skip(result.resumed);
    const auto finish_layers = [&] { store.finish_layers(plan.readers, threads, stop); };
    executor.run(store.open_jobs(), {[&](Index job, const JobResult& done) {
                                       store.write(job, done);
                                       progress.tick(std::ssize(done.rows));
                                     },
                                     finish_layers});
    finish_layers();
  }
  static_cast<RowCounts&>(result) = store.reconcile();
  store.sync();
  result.interrupted = stop && (result.rows < plan.row_range(jobs).size() || store.lacks_layers());
  if (!result.interrupted) {
    store.finish(trace_hashes(manifest));
    manifest.sha256 = store.sha256();
  }
  result.wall_s = seconds_now() - start;
  result.changed_traces = mark_changed(manifest, plan.readers);
  end_manifest(manifest, result.rows, result.failed, result.wall_s);
  write_manifest(o.out, manifest);
  return result;
}

}  // namespace kvbench
