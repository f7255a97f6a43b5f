#include "replay/resources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/error.hpp"
#include "metrics/layer_error.hpp"
#include "replay/job.hpp"
#include "replay/kept_heads.hpp"
#include "replay/stream_job.hpp"

namespace kvbench {
namespace {

// Bytes of device memory.
struct DeviceNeed {
  std::uint64_t heads = 0;
  std::uint64_t jobs = 0;         // without scratch
  std::uint64_t min_scratch = 0;  // logits of one query in each scratch array of each job
};

DeviceNeed device_need(const LayerMeta& l, std::uint64_t heads, std::uint64_t jobs) {
  // Twice: the next heads are uploaded while jobs run.
  return {2 * heads * device_head_bytes(l.n, l.d, l.dv, l.group(), l.nq),
          jobs * device_job_bytes(l.n, l.d, l.group()),
          jobs * kScratchArrays * 8 * static_cast<std::uint64_t>(l.n)};
}

// Number of entries whose heads share a budget, by scope.
struct Sharing {
  std::uint64_t in_layer = 0;
  std::uint64_t in_prompt = 0;
};

Sharing sharing_of(const Plan& plan) {
  Sharing out;
  if (plan.stream()) {
    return out;
  }
  for (const Entries::Setting& setting : plan.entries.settings()) {
    const Scope scope = plan.variants[setting.first.variant].scope();
    out.in_layer += scope == Scope::layer ? setting.seeds->size() : 0;
    out.in_prompt += scope == Scope::layers ? setting.seeds->size() : 0;
  }
  return out;
}

std::uint64_t middle_of(const Plan& plan, const Unit& unit) {
  const LayerMeta& l = plan.layer_meta(unit);
  return static_cast<std::uint64_t>(windows_of(plan.options, l).middle.size());
}

// Bytes of the surveys of all heads that share a budget with `unit`.
std::uint64_t surveys_bytes(const Plan& plan, const Unit& unit) {
  constexpr std::uint64_t kSurveyed = 32;  // per token and entry: at most four numbers
  constexpr std::uint64_t kSorting = 96;   // per token, of one entry at a time
  const Sharing sharing = sharing_of(plan);
  if (sharing.in_layer + sharing.in_prompt == 0) {
    return 0;
  }
  const auto tokens = [&plan](const Unit& u) {
    return middle_of(plan, u) * static_cast<std::uint64_t>(plan.layer_meta(u).kv_heads);
  };
  std::uint64_t of_prompt = 0;
  for (const Range& range : plan.layers()) {
    const Unit& other = plan.units[range.begin];
    const bool same = other.trace == unit.trace && other.prompt == unit.prompt;
    of_prompt += same && sharing.in_prompt > 0 ? tokens(other) : 0;
  }
  return (kSurveyed * sharing.in_layer + kSorting) * tokens(unit) +
         (kSurveyed * sharing.in_prompt + kSorting) * of_prompt;
}

// Most sets of queries whose attention sums a head's score book keeps.
Index score_sets(const Plan& plan, const Unit& unit) {
  std::set<std::pair<std::string, Index>> out;
  if (plan.stream()) {
    return 0;
  }
  for (std::size_t v = 0; v < plan.variants.size(); ++v) {
    for (const Unit& one : plan.distinct_units(unit, v)) {
      const Variant& variant = plan.variant_of(one, v);
      if (const auto queries = scoring_queries(plan, one, variant)) {
        const std::vector<std::string> extra = variant.extra_sets();
        out.emplace(extra.empty() ? "" : variant.name() + extra.front(), queries->had);
      }
    }
  }
  return static_cast<Index>(out.size());
}

void add_layer_need(const PlanSpec& plan, const Unit& unit, MemoryNeed& need) {
  if (!plan.makes_layer_error(unit)) {
    return;
  }
  const LayerMeta& l = plan.layer_meta(unit);
  const Index m = windows_of(plan.options, l).queries;
  const Index columns = l.q_heads * l.dv;
  const Index part = 4 * m * l.group() * l.dv;
  // The unit has the layer's projection. A thread has a job's two parts; or the parts of all heads
  // of an entry, one journal record and their product.
  need.unit += static_cast<std::uint64_t>(4 * l.hidden * columns);
  need.per_thread = std::max(
      need.per_thread + static_cast<std::uint64_t>(2 * part),
      static_cast<std::uint64_t>(4 * m * columns + part + projected_squares_bytes(columns)));
}

}  // namespace

void plan_device(Plan& plan, const DeviceChoice& device) {
  plan.options.device = device.text();
  if (!device.cuda) {
    return;
  }
  const std::uint64_t memory = device_memory(plan.options, device_info(device.ordinal).free_bytes);
  const auto threads = static_cast<std::uint64_t>(wanted_threads(plan.options));
  const std::uint64_t jobs = threads + 1;  // opening the next heads takes what a job takes
  // Enough heads to keep all threads busy until the last jobs of a wave.
  constexpr std::uint64_t kJobsPerThread = 4;
  const std::uint64_t entries = plan.entries.size();
  std::uint64_t heads = (kJobsPerThread * threads + entries - 1) / entries;
  std::size_t scratch = plan.scratch_bytes;
  for (const Unit& unit : plan.units) {
    const LayerMeta& l = plan.layer_meta(unit);
    const DeviceNeed one = device_need(l, 1, jobs);
    const std::uint64_t smallest = one.heads + one.jobs + one.min_scratch;
    if (smallest > memory) {
      throw IoError(fmt::format(
          "--device {}: prompt {} layer {} needs {} bytes for two KV heads and {} for each of {} "
          "threads and the opening of heads, {} available; expected fewer --threads, or --device "
          "cpu",
          plan.options.device, plan.prompt_meta(unit).id, l.layer, one.heads,
          (one.jobs + one.min_scratch) / jobs, threads, memory));
    }
    // Further heads take at most half of the rest: too little scratch splits the work.
    heads = std::min(heads, std::max<std::uint64_t>(1, (memory - smallest) / 2 / one.heads));
    scratch = std::min(scratch, static_cast<std::size_t>((memory - heads * one.heads - one.jobs) /
                                                         (jobs * kScratchArrays)));
  }
  plan.heads_at_once = static_cast<Index>(heads);
  plan.scratch_bytes = scratch;
  plan.open_device = [ordinal = device.ordinal](const KvHead& head, std::size_t scratch_bytes) {
    return open_gpu(head, ordinal, scratch_bytes);
  };
}

MemoryNeed memory_need(const Plan& plan, const Unit& unit) {
  const LayerMeta& layer = plan.layer_meta(unit);
  MemoryNeed need = plan.stream() ? stream_memory_need(layer, plan.options)
                                  : prefill_memory_need(layer, plan.options);
  if (plan.reads_o_proj) {
    need.unit += 4 * static_cast<std::uint64_t>(layer.hidden * layer.group() * layer.dv);
  }
  if (plan.reads_rope) {
    need.unit += 4 * static_cast<std::uint64_t>(layer.rope_positions * layer.rope_dim);
  }
  const ExtraNames extra = extra_names(plan, unit);
  for (const std::string& name : extra.sets) {
    need.unit += static_cast<std::uint64_t>(
        extra_bytes(*find_named(layer.extra, name), layer.group(), layer.d));
  }
  need.unit += 4 * extra.scores.size() * static_cast<std::uint64_t>(layer.n);
  need.unit += 8 * static_cast<std::uint64_t>(score_sets(plan, unit) * layer.group() * layer.n);
  need.unit *= plan.open_device ? 2 : 1;  // the next head is opened while jobs run
  if (plan.caches || !plan.options.export_caches.empty()) {
    // The held entries, and the same as a journal record or as read from a file.
    need.per_thread += 8 * static_cast<std::uint64_t>(layer.n * (2 * layer.d + layer.dv + 3));
  }
  add_layer_need(plan, unit, need);
  need.surveys = surveys_bytes(plan, unit);
  const std::uint64_t every = need.per_thread;
  const LayerFacts facts = layer_facts(plan, unit);
  for (const Entries::Setting& setting : plan.entries.settings()) {
    if (plan.lacks(unit, setting.first.variant) != nullptr) {
      continue;
    }
    for (const Unit& one : plan.distinct_units(unit, setting.first.variant)) {
      const Variant& variant = plan.variant_of(one, setting.first);
      const std::optional<double> budget = plan.budget_of(one, setting.first);
      Index own = variant.job_bytes(facts, budget);
      if (plan.retrieval()) {  // what each query reads, twice and with its level
        own += static_cast<Index>(budget.value_or(1.0) * 12.0 *
                                  static_cast<double>(facts.group * facts.evaluated * facts.n));
      }
      const std::uint64_t bytes = every + static_cast<std::uint64_t>(own);
      std::uint64_t& job = need.jobs[variant.label()];
      job = std::max(job, bytes);
      need.per_thread = std::max(need.per_thread, bytes);
    }
  }
  need.add_margin();
  return need;
}

std::uint64_t shared_bytes(const Plan& plan) {
  const Sharing sharing = sharing_of(plan);
  std::uint64_t out = 0;
  for (const Range& range : plan.layers()) {
    const Unit& unit = plan.units[range.begin];
    // A number per token, an object per layer, and an index entry per head.
    out += (sharing.in_layer + sharing.in_prompt) *
           (8 * middle_of(plan, unit) +
            256 * static_cast<std::uint64_t>(plan.layer_meta(unit).kv_heads));
  }
  return out;
}

int usable_threads(const Plan& plan) {
  auto threads = static_cast<std::uint64_t>(wanted_threads(plan.options));
  for (const Range& layer : plan.layers()) {
    const Unit& unit = plan.units[layer.begin];
    threads = threads_that_fit(plan.options, memory_need(plan, unit), threads,
                               plan.prompt_meta(unit), plan.layer_meta(unit));
  }
  return static_cast<int>(threads);
}

std::uint64_t kept_bytes(const Plan& plan) {
  constexpr std::uint64_t kMost = std::uint64_t{256} << 20;
  std::uint64_t all = 0;
  for (const Unit& unit : plan.units) {
    all += static_cast<std::uint64_t>(head_bytes(plan.layer_meta(unit)));
  }
  return plan.options.memory_limit > 0 ? 0 : std::min(all, kMost);
}

Index heads_at_once(const Plan& plan, int threads) {
  const auto jobs_of_head = static_cast<Index>(std::max<std::size_t>(plan.entries.size(), 1));
  Index heads = plan.open_device ? plan.heads_at_once : (threads + jobs_of_head - 1) / jobs_of_head;
  for (const Range& layer : plan.layers()) {
    if (plan.options.memory_limit > 0) {
      const MemoryNeed need = memory_need(plan, plan.units[layer.begin]);
      const std::uint64_t taken =
          plan.options.program_bytes + need.total(0, static_cast<std::uint64_t>(threads));
      heads = std::min(heads, static_cast<Index>((plan.options.memory_limit - taken) / need.unit));
    }
  }
  return std::max<Index>(heads, 1);
}

}  // namespace kvbench
