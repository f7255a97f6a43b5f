#include "replay/run.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "core/error.hpp"
#include "core/parallel.hpp"
#include "replay/job.hpp"
#include "replay/resume.hpp"
#include "replay/shared.hpp"
#include "replay/stream_job.hpp"
#include "report/csv.hpp"
#include "report/kept.hpp"
#include "report/manifest.hpp"
#include "report/progress.hpp"
#include "report/queries.hpp"
#include "report/schema.hpp"
#include "report/steps.hpp"

namespace kvbench {
namespace {

// Reading a head checks its values; a bad one must be found before the first row is written.
void validate_values(const Plan& plan, const std::atomic<bool>& stop) {
  Progress progress(static_cast<Index>(plan.units.size()), "checking");
  for (const Unit& unit : plan.units) {
    if (stop) {
      return;
    }
    plan.readers[unit.trace].read_head(unit.prompt, unit.layer, unit.kv_head);
    if (plan.reads_rope) {
      plan.readers[unit.trace].read_rope(unit.prompt, unit.layer);
    }
    if (plan.reads_o_proj) {
      plan.readers[unit.trace].read_o_proj(unit.prompt, unit.layer, unit.kv_head);
    }
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

// A table beside the main one, being written.
struct Side {
  const SideTable* table;
  std::unique_ptr<CsvWriter> writer;
};

// Runs jobs on all threads; the first exception that is not a row's ends the run.
class JobRunner {
 public:
  JobRunner(const Plan& plan, const SharedBudgets& shares, CsvWriter& writer,
            std::vector<Side>& sides, Progress& progress, const std::atomic<bool>& stop,
            int threads, Index heads, RunResult& result)
      : plan_(plan),
        shares_(shares),
        writer_(writer),
        sides_(sides),
        progress_(progress),
        stop_(stop),
        threads_(threads),
        heads_(heads),
        result_(result) {}

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
        finish(run_one(**context, job));
      });
      begin = end;
    }
  }

  Jobs wave_end(Jobs begin, Jobs end) const {
    Index heads = 0;
    const Unit* last = nullptr;
    return std::find_if(begin, end, [&](Index job) {
      const Unit* unit = &plan_.unit_of(job);
      heads += unit != last ? 1 : 0;
      last = unit;
      return heads > heads_;
    });
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

  StreamResult run_prefill(const HeadContext& context, Index job) const {
    const std::size_t entry = static_cast<std::size_t>(job) % plan_.entries.size();
    StreamResult done;
    done.rows = run_job(context, plan_.entry_of(job), shares_.find(context.unit(), entry),
                        plan_.options.kept ? &done.kept : nullptr,
                        plan_.options.per_query ? &done.query_errors : nullptr);
    return done;
  }

  // Side tables go first: rows without their lines are what a resumed run looks for.
  void finish(const StreamResult& done) {
    std::vector<Fields> lines;
    for (const Row& row : done.rows) {
      lines.push_back(to_fields(row));
    }
    for (Side& side : sides_) {
      std::vector<Fields> own;
      if (side.table == &steps_table()) {
        for (std::size_t i = 0; i < lines.size(); ++i) {
          for (const Step& step : done.steps[i]) {
            own.push_back(step_fields(lines[i], step));
          }
        }
      } else if (side.table == &queries_table()) {
        for (std::size_t i = 0; i < done.query_errors.size(); ++i) {
          const auto& errors = done.query_errors[i];
          const Index first = done.rows[i].n_tokens - static_cast<Index>(errors.size());
          for (std::size_t j = 0; j < errors.size(); ++j) {
            const auto offset = static_cast<Index>(j);
            own.push_back(query_fields(lines[i], first + offset, offset, errors[j]));
          }
        }
      } else {
        for (const KeptSet& kept : done.kept) {
          own.push_back(kept_fields(lines.front(), kept));
        }
      }
      side.writer->append(own);
    }
    writer_.append(lines);
    const std::lock_guard lock(mutex_);
    for (const Row& row : done.rows) {
      count(row.status);
    }
    progress_.tick();
  }

  void count(const std::string& status) {
    const std::string_view kind = status_kind(status);
    result_.rows += 1;
    result_.failed += kind == "failed" ? 1 : 0;
    result_.infeasible += kind == "infeasible" ? 1 : 0;
    result_.degenerate += kind == "degenerate" ? 1 : 0;
  }

  const Plan& plan_;
  const SharedBudgets& shares_;
  CsvWriter& writer_;
  std::vector<Side>& sides_;
  Progress& progress_;
  const std::atomic<bool>& stop_;
  int threads_;
  Index heads_;  // of a wave, at most
  RunResult& result_;
  std::mutex mutex_;
};

// Replaces a table's rows where they are not these.
void put(CsvWriter& writer, const std::vector<Fields>& there, const std::vector<Fields>& sorted) {
  if (sorted != there) {
    writer.rewrite_sorted(sorted);
  }
}

// The files in the plan's order, and counts from what they really hold.
void settle_files(const Plan& plan, CsvWriter& writer, const std::vector<Side>& sides,
                  RunResult& result) {
  const Table table = read_table(plan.options.out);
  Progressed progressed(plan, table.rows);
  std::vector<std::vector<Fields>> there;
  std::vector<SideProgressed> side_lines;
  for (const Side& side : sides) {
    there.push_back(read_table(side.writer->path()).rows);
    side_lines.emplace_back(plan, *side.table, there.back());
  }
  settle(plan, progressed, side_lines);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    put(*sides[i].writer, there[i], side_lines[i].in_order());
  }
  const std::vector<Fields> sorted = progressed.in_order();
  put(writer, table.rows, sorted);
  const std::size_t status = column_index("status");
  result.rows = static_cast<Index>(sorted.size());
  result.failed = result.infeasible = result.degenerate = 0;
  for (const Fields& row : sorted) {
    const std::string_view kind = status_kind(row[status]);
    result.failed += kind == "failed" ? 1 : 0;
    result.infeasible += kind == "infeasible" ? 1 : 0;
    result.degenerate += kind == "degenerate" ? 1 : 0;
  }
}

}  // namespace

MemoryNeed memory_need(const Plan& plan, const Unit& unit) {
  const LayerMeta& layer = plan.layer_meta(unit);
  MemoryNeed need = plan.stream() ? stream_memory_need(layer, plan.options)
                                  : memory_need(layer, plan.options.queries);
  if (plan.reads_o_proj) {
    need.unit += 4 * static_cast<std::uint64_t>(layer.hidden * layer.group() * layer.dv);
  }
  need.unit *= plan.open_device ? 2 : 1;  // the next head is prepared meanwhile
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
          {"per_query", o.per_query}};
}

RunResult run_plan(const Plan& plan, const std::string& command_line,
                   const std::atomic<bool>& stop) {
  const auto start = std::chrono::steady_clock::now();
  const ReplayOptions& o = plan.options;
  const int threads = usable_threads(plan);
  std::vector<std::filesystem::path> files = {o.out};
  for (const SideTable* table : side_tables(plan)) {
    files.push_back(table->path(o.out));
  }
  for (const auto& file : files) {
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
  const CsvWriter::Mode mode = o.resume      ? CsvWriter::Mode::resume
                               : o.overwrite ? CsvWriter::Mode::overwrite
                                             : CsvWriter::Mode::create;
  CsvWriter writer(o.out, schema_header(), mode);
  Progressed before(plan, writer.existing());
  std::vector<Side> sides;
  std::vector<SideProgressed> sides_before;
  for (const SideTable* table : side_tables(plan)) {
    sides.push_back(
        {table, std::make_unique<CsvWriter>(table->path(o.out), table->header(), mode)});
    sides_before.emplace_back(plan, *table, sides.back().writer->existing());
  }
  settle(plan, before, sides_before);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    CsvWriter& side = *sides[i].writer;
    if (sides_before[i].line_count() != static_cast<Index>(side.existing().size())) {
      side.rewrite_sorted(sides_before[i].in_order());
    }
  }
  if (before.row_count() != static_cast<Index>(writer.existing().size())) {
    writer.rewrite_sorted(before.in_order());  // rows of half-written jobs go, the jobs run again
  }
  result.resumed = before.row_count();
  manifest.rows_resumed = result.resumed;
  write_manifest(o.out, manifest);

  {
    std::vector<Index> open;
    for (Index job = jobs.begin; job < jobs.end; ++job) {
      if (!before.done(job)) {
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
    JobRunner runner(plan, shares, writer, sides, progress, stop, threads,
                     heads_at_once(plan, threads), result);
    runner.run(open);
  }
  settle_files(plan, writer, sides, result);
  for (const Side& side : sides) {
    side.writer->sync();
  }
  writer.sync();
  result.interrupted = stop && result.rows < plan.row_range(jobs).size();
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  end_manifest(manifest, result.rows, result.failed, result.wall_s);
  write_manifest(o.out, manifest);
  return result;
}

}  // namespace kvbench
