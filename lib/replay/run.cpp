#include "replay/run.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "core/error.hpp"
#include "gpu/device.hpp"
#include "replay/clock.hpp"
#include "replay/executor.hpp"
#include "replay/option_list.hpp"
#include "replay/progress.hpp"
#include "replay/resources.hpp"
#include "report/schema.hpp"

namespace kvbench {

nlohmann::json configuration(const PlanSpec& plan) {
  nlohmann::json algorithms = nlohmann::json::array();
  for (const Variant& v : plan.variants) {
    algorithms.push_back({{"name", v.label()}, {"params", v.label_params()}});
  }
  nlohmann::json out{{"traces", plan.options.traces},
                     {"algorithms", algorithms},
                     {"layer_errors", !plan.error_layers.empty()}};
  visit_options(plan.options, [&](const char* key, const auto& value, OptionEffect) {
    out[key] = option_to_json(value);
  });
  out["seeds"] = seeds_text(parse_seeds(plan.options.seeds));
  return out;
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

Ending::Ending(const AtEnd& at_end, std::function<void()> publish) : at_end_(at_end) {
  if (at_end_) {
    at_end_(std::move(publish));
  }
}

Ending::~Ending() {
  if (at_end_) {
    at_end_({});
  }
}

RunResult run_plan(const Plan& plan, const std::string& command_line, const std::atomic<bool>& stop,
                   const AtEnd& at_end) {
  const double start = seconds_now();
  const ReplayOptions& o = plan.options;
  const int threads = usable_threads(plan);
  Executor executor(plan, threads, stop);
  ResultStore::check(plan);
  executor.check_values();

  Manifest manifest =
      start_manifest(command_line, configuration(plan), o, o.traces, plan.readers, threads);
  const Range jobs = plan.shard_jobs();
  manifest.plan = PlanInfo{plan.hash(),
                           plan.row_range({0, plan.jobs()}).size(),
                           {plan.row_range(jobs)},
                           plan.budgets_of_cache()};
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
  const auto publish = [&store, start](Manifest ended, bool whole) {
    end_manifest(ended, 0, 0, seconds_now() - start);
    return store.publish(ended, whole);
  };
  // Lives until the tables are written: a signal may come meanwhile.
  const Ending ending(at_end, [&publish, manifest] { publish(manifest, false); });
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
  const bool whole = store.complete();
  result.interrupted = stop && !whole;
  result.changed_traces = mark_changed(manifest, plan.readers);
  static_cast<RowCounts&>(result) = publish(manifest, whole);
  result.wall_s = seconds_now() - start;
  return result;
}

}  // namespace kvbench
