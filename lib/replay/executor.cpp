#include "replay/executor.hpp"

#include <algorithm>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/parallel.hpp"
#include "replay/job.hpp"
#include "replay/progress.hpp"
#include "replay/repeat.hpp"
#include "replay/resources.hpp"
#include "replay/retrieval_job.hpp"
#include "replay/row_parts.hpp"
#include "replay/shared.hpp"
#include "replay/stream_job.hpp"

namespace kvbench {
namespace {

// Runs jobs on all threads. The first exception ends the run.
struct JobRunner {
  const Plan& plan;
  const JobSink& sink;
  const std::atomic<bool>& stop;
  int threads;
  Index wave_heads;
  KeptHeads& kept;

  using Jobs = std::vector<Index>::const_iterator;

  // Heads in the order of their jobs; fewer if the run was stopped.
  template <class Context>
  using Wave = std::vector<std::unique_ptr<Context>>;

  // Runs one wave after the other. On a device the next wave is opened while jobs run.
  template <class Context, class Run>
  void run_waves(const std::vector<Index>& open, const Run& run_one) const {
    std::future<Wave<Context>> ahead;
    for (Jobs begin = open.begin(); begin != open.end() && !stop;) {
      const Jobs end = wave_end(begin, open.end());
      const Wave<Context> wave = take_wave(ahead, begin, end);
      sink.between_waves();
      if (plan.open_device && end != open.end()) {
        ahead = std::async(std::launch::async, [this, end, then = wave_end(end, open.end())] {
          return open_wave<Context>(end, then);
        });
      }
      run_wave(wave, begin, end, run_one);
      begin = end;
    }
  }

  // What got no memory beside the last wave's jobs may get it when they are done.
  template <class Context>
  Wave<Context> take_wave(std::future<Wave<Context>>& ahead, Jobs begin, Jobs end) const {
    if (ahead.valid()) {
      try {
        return ahead.get();
      } catch (const OutOfMemory&) {
      }
    }
    return open_wave<Context>(begin, end);
  }

  // Jobs that get no memory run again when the others are done, one at a time.
  template <class Context, class Run>
  void run_wave(const Wave<Context>& wave, Jobs begin, Jobs end, const Run& run_one) const {
    const auto context_of = [&](Index job) -> const Context& {
      const Unit* unit = &plan.unit_of(job);
      return **std::ranges::find_if(wave, [&](const auto& c) { return &c->unit() == unit; });
    };
    std::vector<Index> again;
    again.reserve(static_cast<std::size_t>(end - begin));
    std::mutex mutex;
    parallel_for(end - begin, threads, stop, [&](Index i) {
      const Index job = *(begin + i);
      try {
        sink.write(job, run_one(context_of(job), job));
      } catch (const OutOfMemory&) {
        const std::lock_guard lock(mutex);
        again.push_back(job);
      }
    });
    for (const Index job : again) {
      if (stop) {
        return;
      }
      const Context& context = context_of(job);
      try {
        sink.write(job, run_one(context, job));
      } catch (const OutOfMemory&) {
        sink.write(job, lacking_memory(context, plan.entry_of(job)));
      }
    }
  }

  // With layer errors, a wave that contains the end of a layer ends at the last such end. Otherwise
  // parts of unfinished layers would pile up in the journal.
  Jobs wave_end(Jobs begin, Jobs end) const {
    Index heads = 0;
    const Unit* last = nullptr;
    Jobs whole = begin;  // end of the last whole layer
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
    if (plan.open_device == nullptr && count >= threads) {  // one thread per head
      parallel_for(count, threads, stop, [&](Index i) { out[i] = open<Context>(*units[i], 1); });
    }
    for (Index i = 0; i < count && !stop; ++i) {
      if (out[i] == nullptr) {
        out[i] = open<Context>(*units[i], threads);
      }
    }
    std::erase(out, nullptr);
    return out;
  }

  template <class Context>
  std::unique_ptr<Context> open(const Unit& unit, int with) const {
    return std::make_unique<Context>(plan, unit, with, kept.take(unit));
  }
};

}  // namespace

Executor::Executor(const Plan& plan, int threads, const std::atomic<bool>& stop)
    : plan_(plan), threads_(threads), stop_(stop), kept_(kept_bytes(plan)) {}

void Executor::check_values() {
  LoadedCaches::Checked budgets;
  const Range jobs = plan_.shard_jobs();
  std::set<UnitKey> others;  // that are surveyed, and not replayed
  if (!plan_.stream()) {
    others = heads_to_survey(plan_, positions_of(jobs));
    for (const Unit& unit : plan_.units) {
      others.erase(unit.key());
    }
  }
  Progress progress(std::ssize(plan_.units) + std::ssize(others), "checking", "KV heads");
  Index next = 0;  // the unit's first job
  for (const Unit& unit : plan_.units) {
    if (stop_) {
      return;
    }
    const Range mine{next, next + static_cast<Index>(plan_.entries.size())};
    next = mine.end;
    HeadInput input(plan_, unit, {}, /*upload=*/false);
    check_range(plan_, unit, input.head());
    if (plan_.caches) {
      plan_.caches->check(plan_, unit, input.head(), budgets);
    }
    if (plan_.makes_layer_error(unit)) {
      const TraceReader& reader = plan_.reader(unit);
      reader.read_o_proj(unit.prompt, unit.layer, unit.kv_head);
      reader.read_residual_norm(unit.prompt, unit.layer);
    }
    if (mine.begin < jobs.end && jobs.begin < mine.end) {
      kept_.keep(unit, std::move(input).head());
    }
    progress.tick();
  }
  for (const auto& [trace, prompt, layer, kv_head] : others) {
    if (stop_) {
      return;
    }
    const Unit unit{trace, prompt, layer, kv_head, {}};
    check_range(plan_, unit, HeadInput(plan_, unit, {}, /*upload=*/false).head());
    progress.tick();
  }
}

void Executor::run(const std::vector<Index>& jobs, const JobSink& sink) {
  const JobRunner runner{plan_, sink, stop_, threads_, heads_at_once(plan_, threads_), kept_};
  const Index repeat = plan_.options.repeat;
  if (plan_.stream()) {
    runner.run_waves<StreamContext>(jobs, [&](const StreamContext& context, Index job) {
      return repeat_job(repeat, [&] { return run_stream_job(context, plan_.entry_of(job)); });
    });
  } else {
    const SharedBudgets shares(plan_, jobs, stop_, &kept_);
    runner.run_waves<HeadContext>(jobs, [&](const HeadContext& context, Index job) {
      const std::size_t entry = plan_.entry_number(job);
      return repeat_job(repeat, [&] {
        const ShareOrError* share = shares.find(context.unit(), entry);
        return plan_.retrieval() ? run_retrieval_job(context, plan_.entries[entry], share)
                                 : run_job(context, plan_.entries[entry], share);
      });
    });
  }
}

}  // namespace kvbench
