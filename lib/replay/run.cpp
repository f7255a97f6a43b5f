#include "replay/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/parallel.hpp"
#include "gpu/device.hpp"
#include "replay/continued.hpp"
#include "replay/given.hpp"
#include "replay/job.hpp"
#include "replay/layer_errors.hpp"
#include "replay/progress.hpp"
#include "replay/repeat.hpp"
#include "replay/resume.hpp"
#include "replay/shared.hpp"
#include "replay/stream_job.hpp"
#include "report/csv.hpp"
#include "report/row_crc.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Reading a head checks its values; bad ones, and those that a job would refuse, must be found
// before the first row is written.
void validate_values(const Plan& plan, const std::atomic<bool>& stop) {
  Progress progress(static_cast<Index>(plan.units.size()), "checking", "KV heads");
  GivenCaches::Checked budgets;
  for (const Unit& unit : plan.units) {
    if (stop) {
      return;
    }
    const KvHead head = plan.readers[unit.trace].read_head(unit.prompt, unit.layer, unit.kv_head);
    check_range(plan, unit, head);
    if (plan.caches) {
      plan.caches->check(plan, unit, head, budgets);
    }
    if (plan.reads_rope) {
      plan.readers[unit.trace].read_rope(unit.prompt, unit.layer);
    }
    if (plan.reads_o_proj) {
      plan.readers[unit.trace].read_o_proj(unit.prompt, unit.layer, unit.kv_head);
    }
    const AskedExtra asked = asked_extra(plan, unit);
    for (const std::string& name : asked.sets) {
      plan.readers[unit.trace].read_extra(unit.prompt, unit.layer, name, unit.kv_head);
    }
    for (const std::string& name : asked.scores) {
      plan.readers[unit.trace].read_scores(unit.prompt, unit.layer, name, unit.kv_head);
    }
    validate_layer_values(plan, unit);
    progress.tick();
  }
}

// Runs jobs on all threads; the first exception that is not a row's ends the run.
struct JobRunner {
  const Plan& plan;
  Outputs& outputs;
  Progress& progress;
  const std::atomic<bool>& stop;
  int threads;
  Index wave_heads;  // at most

  using Jobs = std::vector<Index>::const_iterator;

  // Heads of a wave, in the order of their jobs; fewer where the run was stopped.
  template <class Context>
  using Wave = std::vector<std::unique_ptr<Context>>;

  // A wave of heads at a time: on the CPU one; on a device as many as keep it busy, and while their
  // jobs run the next wave is read, uploaded and given its truth.
  template <class Context, class Run>
  void run_waves(const std::vector<Index>& open, const Run& run_one) const {
    std::future<Wave<Context>> ahead;
    for (Jobs begin = open.begin(); begin != open.end() && !stop;) {
      const Jobs end = wave_end(begin, open.end());
      const Wave<Context> wave = ahead.valid() ? ahead.get() : open_wave<Context>(begin, end);
      outputs.finish_layers(threads, stop);  // while nobody else reads a trace
      if (plan.open_device && end != open.end()) {
        ahead = std::async(std::launch::async, [this, end, then = wave_end(end, open.end())] {
          return open_wave<Context>(end, then);
        });
      }
      parallel_for(end - begin, threads, stop, [&](Index i) {
        const Index job = *(begin + i);
        const Unit* unit = &plan.unit_of(job);
        const auto context = std::find_if(wave.begin(), wave.end(),
                                          [&](const auto& c) { return &c->unit() == unit; });
        outputs.write(job, run_one(**context, job));
        progress.tick(std::ssize(unit->q_heads));
      });
      begin = end;
    }
  }

  // A wave that reaches a layer's end goes no further than the last that it reaches, where the
  // layers' errors are made: what jobs of open layers left would pile up.
  Jobs wave_end(Jobs begin, Jobs end) const {
    Index heads = 0;
    const Unit* last = nullptr;
    Jobs whole = begin;  // behind the last job of a layer
    for (Jobs at = begin; at != end; ++at) {
      const Unit* unit = &plan.unit_of(*at);
      if (unit != last && last != nullptr && plan.makes_layer_error(*last) &&
          unit->layer_key() != last->layer_key()) {
        whole = at;
      }
      heads += unit != last ? 1 : 0;
      last = unit;
      if (heads > wave_heads) {
        return whole == begin ? at : whole;
      }
    }
    return end;
  }

  template <class Context>
  Wave<Context> open_wave(Jobs begin, Jobs end) const {
    std::vector<const Unit*> units;
    for (Jobs job = begin; job != end; ++job) {
      const Unit* unit = &plan.unit_of(*job);
      if (units.empty() || units.back() != unit) {
        units.push_back(unit);
      }
    }
    Wave<Context> out(units.size());
    const auto count = static_cast<Index>(units.size());
    if (plan.open_device == nullptr && count >= threads) {  // one thread each: parts have only one
      parallel_for(count, threads, stop,
                   [&](Index i) { out[i] = std::make_unique<Context>(plan, *units[i], 1); });
    }
    for (Index i = 0; i < count && !stop; ++i) {
      if (out[i] == nullptr) {
        out[i] = std::make_unique<Context>(plan, *units[i], threads);
      }
    }
    std::erase(out, nullptr);
    return out;
  }
};

}  // namespace

nlohmann::json configuration(const Plan& plan) {
  const ReplayOptions& o = plan.options;
  nlohmann::json algorithms = nlohmann::json::array();
  for (const Variant& v : plan.variants) {
    algorithms.push_back({{"name", v.name()}, {"params", v.params.canonical()}});
  }
  const nlohmann::json per_query =
      o.per_query == PerQuery::none ? nlohmann::json(false) : nlohmann::json(name(o.per_query));
  return {{"traces", o.traces},
          {"algorithms", algorithms},
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
          {"shard_costs", o.shard_costs},
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
    // Its values have been checked, and where they lie is known: both would be of other contents.
    if (!reader.unchanged()) {
      throw InputError(
          fmt::format("{}: was written to since it was opened, expected a trace that nobody writes",
                      traces[i]));
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
  const auto start = std::chrono::steady_clock::now();
  const ReplayOptions& o = plan.options;
  const int threads = usable_threads(plan);
  Outputs::check(plan);
  validate_values(plan, stop);

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
  std::string earlier;
  if (o.resume && std::filesystem::exists(o.out)) {
    earlier = check_continued(plan, manifest);
  }
  Outputs outputs(plan, manifest.run_id, earlier);
  result.resumed = outputs.rows_resumed();
  manifest.rows_resumed = result.resumed;
  write_manifest(o.out, manifest);

  {
    std::vector<Index> open;
    for (Index job = jobs.begin; job < jobs.end; ++job) {
      if (!outputs.done(job)) {
        open.push_back(job);
      }
    }
    const std::vector<Index> none;  // a stream's heads share no budgets
    const SharedBudgets shares(plan, plan.stream() ? none : open, stop);
    Progress progress(plan.row_range(jobs).size(), "replay", "rows");
    progress.skip(outputs.rows_resumed());
    const JobRunner runner{plan, outputs, progress, stop, threads, heads_at_once(plan, threads)};
    if (plan.stream()) {
      runner.run_waves<StreamContext>(open, [&](const StreamContext& context, Index job) {
        return repeat_job(o.repeat, [&] { return run_stream_job(context, plan.entry_of(job)); });
      });
    } else {
      runner.run_waves<HeadContext>(open, [&](const HeadContext& context, Index job) {
        const std::size_t entry = plan.entry_number(job);
        return repeat_job(o.repeat, [&] {
          return run_job(context, plan.entries[entry], shares.find(context.unit(), entry));
        });
      });
    }
    outputs.finish_layers(threads, stop);
  }
  static_cast<RowCounts&>(result) = outputs.reconcile();
  outputs.sync();
  result.interrupted =
      stop && (result.rows < plan.row_range(jobs).size() || outputs.lacks_layers());
  if (!result.interrupted) {
    outputs.finish(trace_hashes(manifest));
    manifest.sha256 = outputs.sha256();
  }
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.changed_traces = mark_changed(manifest, plan.readers);
  end_manifest(manifest, result.rows, result.failed, result.wall_s);
  write_manifest(o.out, manifest);
  return result;
}

}  // namespace kvbench
