#include "replay/run.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/parallel.hpp"
#include "replay/given.hpp"
#include "replay/job.hpp"
#include "replay/layer_errors.hpp"
#include "replay/resume.hpp"
#include "replay/shared.hpp"
#include "replay/stream_job.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/progress.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Reading a head checks its values; a bad one must be found before the first row is written.
void validate_values(const Plan& plan, const std::atomic<bool>& stop) {
  Progress progress(static_cast<Index>(plan.units.size()), "checking");
  GivenCaches::Checked budgets;
  for (const Unit& unit : plan.units) {
    if (stop) {
      return;
    }
    const KvHead head = plan.readers[unit.trace].read_head(unit.prompt, unit.layer, unit.kv_head);
    if (plan.caches) {
      plan.caches->check(plan, unit, head, budgets);
    }
    if (plan.reads_rope) {
      plan.readers[unit.trace].read_rope(unit.prompt, unit.layer);
    }
    if (plan.reads_o_proj) {
      plan.readers[unit.trace].read_o_proj(unit.prompt, unit.layer, unit.kv_head);
    }
    validate_layer_values(plan, unit);
    progress.tick();
  }
}

// A file of another plan must not be continued: its rows may have come from another trace. One
// that a run left before its manifest was written holds no rows, and nothing can be mixed.
void check_same_plan(const Plan& plan, const Manifest& now) {
  if (!std::filesystem::exists(manifest_path(plan.options.out)) &&
      csv_line(schema_header()).rfind(read_text_file(plan.options.out), 0) == 0) {
    return;
  }
  const Manifest then = read_manifest(plan.options.out);
  const auto refuse = [&](const char* what) {
    throw InputError(fmt::format("{}: {} differ from those of the run to resume ({})",
                                 plan.options.out, what, manifest_path(plan.options.out).string()));
  };
  if (!then.plan || then.plan->hash != now.plan->hash ||
      then.plan->row_ranges != now.plan->row_ranges) {
    refuse("options");
  }
  for (std::size_t i = 0; i < now.traces.size(); ++i) {
    if (i >= then.traces.size() || then.traces[i].sha256 != now.traces[i].sha256) {
      refuse("the contents of the traces");
    }
  }
}

// Runs jobs on all threads; the first exception that is not a row's ends the run.
class JobRunner {
 public:
  JobRunner(const Plan& plan, const SharedBudgets& shares, Outputs& outputs, Progress& progress,
            const std::atomic<bool>& stop, int threads, Index heads)
      : plan_(plan),
        shares_(shares),
        outputs_(outputs),
        progress_(progress),
        stop_(stop),
        threads_(threads),
        heads_(heads) {}

  /// Runs these jobs, which come in the plan's order.
  void run(const std::vector<Index>& open) {
    if (plan_.stream()) {
      run_waves<StreamContext>(open, [](const StreamContext& context, Index job) {
        return run_stream_job(context, context.plan().entry_of(job));
      });
    } else {
      run_waves<HeadContext>(open, [this](const HeadContext& context, Index job) {
        return run_prefill(context, job);
      });
    }
  }

 private:
  using Jobs = std::vector<Index>::const_iterator;

  // Heads of a wave, in the order of their jobs; fewer where the run was stopped.
  template <class Context>
  using Wave = std::vector<std::unique_ptr<Context>>;

  // A wave of heads at a time: on the CPU one; on a device as many as keep it busy, and while their
  // jobs run the next wave is read, uploaded and given its truth.
  template <class Context, class Run>
  void run_waves(const std::vector<Index>& open, const Run& run_one) {
    std::future<Wave<Context>> ahead;
    for (Jobs begin = open.begin(); begin != open.end() && !stop_;) {
      const Jobs end = wave_end(begin, open.end());
      const Wave<Context> wave = ahead.valid() ? ahead.get() : open_wave<Context>(begin, end);
      outputs_.finish_layers(threads_, stop_);  // while nobody else reads a trace
      if (plan_.open_device && end != open.end()) {
        ahead = std::async(std::launch::async, [this, end, then = wave_end(end, open.end())] {
          return open_wave<Context>(end, then);
        });
      }
      parallel_for(end - begin, threads_, stop_, [&](Index i) {
        const Index job = *(begin + i);
        const Unit* unit = &plan_.unit_of(job);
        const auto context = std::find_if(wave.begin(), wave.end(),
                                          [&](const auto& c) { return &c->unit() == unit; });
        outputs_.write(job, run_one(**context, job));
        const std::lock_guard lock(mutex_);
        progress_.tick();
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
      const Unit* unit = &plan_.unit_of(*at);
      if (unit != last && last != nullptr && plan_.makes_layer_error(*last) &&
          !same_layer(*unit, *last)) {
        whole = at;
      }
      heads += unit != last ? 1 : 0;
      last = unit;
      if (heads > heads_) {
        return whole == begin ? at : whole;
      }
    }
    return end;
  }

  template <class Context>
  Wave<Context> open_wave(Jobs begin, Jobs end) const {
    Wave<Context> out;
    for (Jobs job = begin; job != end && !(stop_ && !out.empty()); ++job) {
      const Unit& unit = plan_.unit_of(*job);
      if (out.empty() || &out.back()->unit() != &unit) {
        out.push_back(std::make_unique<Context>(plan_, unit, threads_));
      }
    }
    return out;
  }

  JobResult run_prefill(const HeadContext& context, Index job) const {
    const std::size_t entry = static_cast<std::size_t>(job) % plan_.entries.size();
    return run_job(context, plan_.entry_of(job), shares_.find(context.unit(), entry));
  }

  const Plan& plan_;
  const SharedBudgets& shares_;
  Outputs& outputs_;
  Progress& progress_;
  const std::atomic<bool>& stop_;
  int threads_;
  Index heads_;  // of a wave, at most
  std::mutex mutex_;
};

}  // namespace

MemoryNeed memory_need(const Plan& plan, const Unit& unit) {
  const LayerMeta& layer = plan.layer_meta(unit);
  MemoryNeed need = plan.stream() ? stream_memory_need(layer, plan.options)
                                  : memory_need(layer, plan.options.queries);
  if (plan.reads_o_proj) {
    need.unit += 4 * static_cast<std::uint64_t>(layer.hidden * layer.group() * layer.dv);
  }
  need.unit *= plan.open_device ? 2 : 1;  // the next head is prepared meanwhile
  if (plan.caches || !plan.options.export_caches.empty()) {
    // A copy of what is held, and the same as a record or as what a file gave.
    need.per_thread += 8 * static_cast<std::uint64_t>(layer.n * (2 * layer.d + layer.dv + 3));
  }
  const LayerFacts facts = layer_facts(plan, unit);
  const Index middle = windows_of(plan.options, layer.n, layer.nq).middle.size();
  Index most = 0;
  for (const Entry& entry : plan.entries) {
    const double share = entry.budget.value_or(1.0);  // a native size is not known here
    most = std::max(
        most,
        plan.variant_of(unit, entry)
            .scratch_bytes(facts, middle, static_cast<Index>(share * static_cast<double>(middle))));
  }
  need.per_thread += static_cast<std::uint64_t>(most);
  add_layer_need(plan, unit, need);
  return need;
}

int usable_threads(const Plan& plan) {
  const int wanted = wanted_threads(plan.options);
  if (plan.options.memory_limit == 0) {
    return wanted;
  }
  std::uint64_t fit = static_cast<std::uint64_t>(wanted);
  for (const Unit& unit : plan.units) {
    const MemoryNeed need = memory_need(plan, unit);
    const std::uint64_t least = need.unit + need.per_thread;
    if (least > plan.options.memory_limit) {
      throw InputError(fmt::format(
          "--memory-limit: got {} bytes, expected at least {} for prompt {} layer {} (n = {})",
          plan.options.memory_limit, least, plan.prompt_meta(unit).id, plan.layer_meta(unit).layer,
          plan.layer_meta(unit).n));
    }
    fit = std::min(fit, (plan.options.memory_limit - need.unit) / need.per_thread);
  }
  return static_cast<int>(fit);
}

Index heads_at_once(const Plan& plan, int threads) {
  if (!plan.open_device) {
    return 1;
  }
  Index heads = plan.heads_at_once;
  for (const Unit& unit : plan.units) {
    const MemoryNeed need = memory_need(plan, unit);
    const std::uint64_t jobs = need.per_thread * static_cast<std::uint64_t>(threads);
    if (plan.options.memory_limit > 0) {
      heads = std::min(heads, static_cast<Index>((plan.options.memory_limit - jobs) / need.unit));
    }
  }
  return std::max<Index>(heads, 1);
}

nlohmann::json configuration(const Plan& plan) {
  const ReplayOptions& o = plan.options;
  nlohmann::json algorithms = nlohmann::json::array();
  for (const Variant& v : plan.variants) {
    algorithms.push_back({{"name", v.name()}, {"params", v.params.canonical()}});
  }
  return {{"traces", o.traces},
          {"algorithms", algorithms},
          {"budgets", o.budgets},
          {"seeds", parse_seeds(o.seeds)},
          {"layers", o.layers},
          {"heads", o.heads},
          {"prompts", o.prompts},
          {"protocol", o.protocol},
          {"sink", o.sink},
          {"recent", o.recent},
          {"queries", o.queries},
          {"scores", o.scores},
          {"device", o.device},
          {"gpu_math", o.gpu_math},
          {"memory_limit", o.memory_limit},
          {"eval_every", o.eval_every},
          {"kept", o.kept},
          {"per_query", o.per_query},
          {"export_caches", o.export_caches},
          {"caches", o.caches},
          {"layer_errors", !plan.error_layers.empty()},
          {"layer_errors_without", layers_without_error(plan)}};
}

RunResult run_plan(const Plan& plan, const std::string& command_line,
                   const std::atomic<bool>& stop) {
  const auto start = std::chrono::steady_clock::now();
  const ReplayOptions& o = plan.options;
  const int threads = usable_threads(plan);
  for (const auto& file : Outputs::files(plan)) {
    for (const auto* inputs : {&o.traces, &o.caches}) {
      for (const std::string& input : *inputs) {
        std::error_code absent;
        if (std::filesystem::equivalent(file, input, absent)) {
          throw InputError(
              fmt::format("{}: is also what the run reads, expected another file", file.string()));
        }
      }
    }
    if (!o.resume && !o.overwrite && std::filesystem::exists(file)) {
      throw InputError(fmt::format(
          "{}: exists, expected --resume to go on, --overwrite to start anew, or another file",
          file.string()));
    }
  }
  validate_values(plan, stop);

  Manifest manifest = begin_manifest(command_line, configuration(plan));
  manifest.threads = threads;
  if (o.device != "cpu") {
    const DeviceInfo info = device_info(choose_device(o.device).ordinal);
    manifest.gpu = info.model;
    manifest.driver = info.driver;
  }
  for (const std::string& trace : o.traces) {
    add_trace(manifest, trace);
  }
  const Range jobs = plan.shard_jobs();
  manifest.plan =
      PlanInfo{plan.hash(), plan.row_range({0, plan.jobs()}).size(), {plan.row_range(jobs)}};
  if (o.shard_count > 1) {
    manifest.shard = Shard{o.shard_index, o.shard_count};
  }
  RunResult result;
  result.interrupted = stop;
  if (result.interrupted) {
    return result;
  }
  if (o.resume && std::filesystem::exists(o.out)) {
    check_same_plan(plan, manifest);
  }
  Outputs outputs(plan);
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
    const SharedBudgets shares(plan, plan.stream() ? std::vector<Index>{} : open, stop);
    if (plan.open_exact && !open.empty()) {
      result.math = check_math(plan, plan.unit_of(open.front()), shares, threads, stop);
      manifest.math_check = to_json(result.math);
      write_manifest(o.out, manifest);
    }
    Progress progress(jobs.size(), "replay");
    progress.tick(jobs.size() - static_cast<Index>(open.size()));
    JobRunner(plan, shares, outputs, progress, stop, threads, heads_at_once(plan, threads))
        .run(open);
    outputs.finish_layers(threads, stop);
  }
  static_cast<RowCounts&>(result) = outputs.settle();
  outputs.sync();
  result.interrupted =
      stop && (result.rows < plan.row_range(jobs).size() || outputs.lacks_layers());
  if (!result.interrupted) {
    std::vector<std::string> hashes;
    for (const TraceFile& trace : manifest.traces) {
      hashes.push_back(trace.sha256);
    }
    outputs.finish(hashes);
  }
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  end_manifest(manifest, result.rows, result.failed, result.wall_s);
  write_manifest(o.out, manifest);
  return result;
}

}  // namespace kvbench
