#include "replay/plan.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "replay/cache_export.hpp"
#include "replay/given.hpp"
#include "replay/job.hpp"
#include "replay/layer_errors.hpp"
#include "replay/selection.hpp"
#include "report/sha256.hpp"

namespace kvbench {
namespace {

constexpr Index kMostShards = 1000000;  // times the number of jobs it fits 64 bits
constexpr int kMostThreads = 1024;

void check_options(const ReplayOptions& o) {
  check_input(!o.traces.empty(), "replay: no trace given");
  check_input(o.protocol == "prefill" || o.protocol == "stream",
              fmt::format("--protocol: got '{}', expected prefill or stream", o.protocol));
  check_input(o.scores == "past" || o.scores == "all",
              fmt::format("--scores: got '{}', expected past or all", o.scores));
  check_input(o.sink >= 0, fmt::format("--sink: got {}, expected at least 0", o.sink));
  check_input(o.queries >= 1, fmt::format("--queries: got {}, expected at least 1", o.queries));
  const bool stream = o.protocol == "stream";
  check_input(stream || o.recent >= o.queries,
              fmt::format("--recent: got {}, expected at least --queries, which is {}", o.recent,
                          o.queries));
  check_input(o.recent >= 0, fmt::format("--recent: got {}, expected at least 0", o.recent));
  check_input(
      o.eval_every >= 0,
      fmt::format("--eval-every: got {}, expected at least 1, or 0 for n/64", o.eval_every));
  check_input(
      stream || o.eval_every == 0,
      "--eval-every: only --protocol stream has steps between the first and the last queries");
  check_input(!stream || o.scores == "past",
              "--scores all: a stream's methods see the queries that have come, expected past");
  for (const double b : o.budgets) {
    check_input(b >= 0.0 && b <= 1.0,
                fmt::format("--budget: got {}, expected fractions in [0, 1]", b));
  }
  check_input(o.shard_count <= kMostShards && o.shard_index >= 1 && o.shard_index <= o.shard_count,
              fmt::format("--shard: got {}/{}, expected i/N with 1 <= i <= N <= {}", o.shard_index,
                          o.shard_count, kMostShards));
  check_input(o.threads >= 0 && o.threads <= kMostThreads,
              fmt::format("--threads: got {}, expected 0 to {}", o.threads, kMostThreads));
  check_input(!stream || !o.per_query,
              "--per-query: under --protocol stream OUT.steps.csv holds each evaluated query");
  check_input(!(o.resume && o.overwrite), "--resume and --overwrite exclude each other");
  check_input(o.gpu_math == "exact" || o.gpu_math == "fast",
              fmt::format("--gpu-math: got '{}', expected exact or fast", o.gpu_math));
}

std::vector<Entry> list_entries(const ReplayOptions& o, const std::vector<Variant>& variants) {
  const std::vector<std::uint64_t> seeds = parse_seeds(o.seeds);
  std::vector<double> budgets = o.budgets;
  std::sort(budgets.begin(), budgets.end(), std::greater<>());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  std::vector<Entry> out;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    const std::string name = variants[v].name();
    const std::vector<std::string>& size_names = variants[v].sizes();
    std::vector<std::optional<double>> sizes(budgets.begin(), budgets.end());
    if (variants[v].sized()) {
      sizes = {std::nullopt};
    }
    const auto given =
        std::count_if(size_names.begin(), size_names.end(),
                      [&](const std::string& s) { return !variants[v].params.is_auto(s); });
    check_input(given <= 1,
                fmt::format("{}: {}: more than one size, expected one of {}", name,
                            variants[v].params.canonical(), fmt::join(size_names, ", ")));
    check_input(!sizes.empty(),
                fmt::format("{}: no size, expected --budget or one of its parameters {}", name,
                            fmt::join(size_names, ", ")));
    const bool random = variants[v].random();
    for (const auto& size : sizes) {
      for (const std::uint64_t seed : random ? seeds : std::vector<std::uint64_t>{0}) {
        out.push_back({v, size, seed});
      }
    }
  }
  return out;
}

std::vector<Unit> list_units(const ReplayOptions& o, const std::vector<TraceReader>& readers) {
  std::vector<Unit> out;
  std::set<Index> layers;
  std::set<Index> heads;
  std::set<std::string> prompts;
  for (std::size_t t = 0; t < readers.size(); ++t) {
    const TraceMeta& meta = readers[t].meta();
    for (std::size_t p = 0; p < meta.prompts.size(); ++p) {
      const PromptMeta& prompt = meta.prompts[p];
      prompts.insert(prompt.id);
      for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
        const LayerMeta& layer = prompt.layers[l];
        layers.insert(layer.layer);
        for (Index h = 0; h < layer.q_heads; ++h) {
          heads.insert(h);
        }
        if (!chosen(o.prompts, prompt.id) || !chosen(o.layers, layer.layer)) {
          continue;
        }
        for (Index kv = 0; kv < layer.kv_heads; ++kv) {
          Unit unit{t, p, l, kv, {}};
          for (Index h = kv * layer.group(); h < (kv + 1) * layer.group(); ++h) {
            if (chosen(o.heads, h)) {
              unit.q_heads.push_back(h);
            }
          }
          if (!unit.q_heads.empty()) {
            out.push_back(std::move(unit));
          }
        }
      }
    }
  }
  check_found("--layers", o.layers, layers);
  check_found("--heads", o.heads, heads);
  check_found("--prompts", o.prompts, prompts);
  check_input(!out.empty(), "replay: --prompts, --layers and --heads together select nothing");
  return out;
}

// Takes out what only "all" asked for and some layer cannot give: `lacking` says what, by variant.
void leave_out(Plan& plan, const std::map<std::size_t, std::string>& lacking) {
  for (auto it = lacking.rbegin(); it != lacking.rend(); ++it) {
    plan.variants.erase(plan.variants.begin() + static_cast<std::ptrdiff_t>(it->first));
  }
  for (const auto& [v, what] : lacking) {
    plan.left_out.push_back("note: --algorithm all leaves out " + what);
  }
  plan.entries = list_entries(plan.options, plan.variants);
  plan.resolved.clear();
}

// Settles what methods leave to the trace, and refuses what a layer cannot give, before any row.
void resolve_variants(Plan& plan) {
  std::map<std::size_t, std::string> lacking;
  std::set<std::tuple<std::size_t, std::size_t, std::size_t>> seen;
  for (const Unit& unit : plan.units) {
    if (!seen.insert({unit.trace, unit.prompt, unit.layer}).second) {
      continue;
    }
    const LayerMeta& l = plan.layer_meta(unit);
    const LayerFacts facts = layer_facts(plan, unit);
    std::set<std::pair<std::string, std::string>> here;
    for (std::size_t v = 0; v < plan.variants.size(); ++v) {
      const Variant& variant = plan.variants[v];
      Variant now;
      try {
        now = variant.resolved(facts);
      } catch (const InputError& e) {
        const std::string where =
            fmt::format("{}: prompt {} layer {}: {}", plan.trace_names[unit.trace],
                        plan.prompt_meta(unit).id, l.layer, e.what());
        if (!variant.by_all) {
          throw InputError(where);
        }
        lacking.emplace(v, variant.name() + ": " + where);
        continue;
      }
      check_input(
          here.emplace(now.name(), now.params.canonical()).second,
          fmt::format("--algorithm {}: {} comes twice where `auto` is resolved (prompt {} "
                      "layer {}), expected each once",
                      now.name(), now.params.canonical(), plan.prompt_meta(unit).id, l.layer));
      if (now.params.canonical() != variant.params.canonical()) {
        plan.resolved.emplace(std::tuple{unit.trace, unit.prompt, unit.layer, v}, std::move(now));
      }
    }
  }
  if (!lacking.empty()) {  // numbers of variants change: once more, over those that are left
    leave_out(plan, lacking);
    resolve_variants(plan);
  }
}

// Device memory that the jobs of the largest unit need with `heads` of them at a time, and what of
// it is theirs beside scratch.
struct DeviceNeed {
  std::uint64_t heads = 0;
  std::uint64_t jobs = 0;
  std::uint64_t least_scratch = 0;  ///< one query's logits in each array of each job
};

DeviceNeed device_need(const LayerMeta& l, std::uint64_t heads, std::uint64_t jobs) {
  // Those that jobs run on, and the next.
  return {2 * heads * device_head_bytes(l.n, l.d, l.dv, l.group(), l.nq),
          jobs * device_job_bytes(l.n, l.d, l.group()),
          jobs * kScratchArrays * 8 * static_cast<std::uint64_t>(l.n)};
}

// Settles where the plan runs, how many heads are there at a time, and how much device memory a
// job's arrays may take.
void plan_device(Plan& plan, const DeviceChoice& device) {
  plan.options.device = device.text();
  if (!device.cuda) {
    return;
  }
  const DeviceInfo info = device_info(device.ordinal);
  std::uint64_t room = info.free_bytes - info.free_bytes / 16;  // some is lost to fragments
  if (plan.options.memory_limit > 0) {
    room = std::min(room, plan.options.memory_limit);
  }
  const auto jobs = static_cast<std::uint64_t>(wanted_threads(plan.options));
  // Enough heads that every thread has some jobs before all wait for the last.
  constexpr std::uint64_t kJobsPerThread = 4;
  const std::uint64_t entries = plan.entries.size();
  std::uint64_t heads = (kJobsPerThread * jobs + entries - 1) / entries;
  std::size_t scratch = plan.scratch_bytes;
  for (const Unit& unit : plan.units) {
    const LayerMeta& l = plan.layer_meta(unit);
    const DeviceNeed one = device_need(l, 1, jobs);
    const std::uint64_t least = one.heads + one.jobs + one.least_scratch;
    if (least > room) {
      throw IoError(fmt::format(
          "--device {}: prompt {} layer {} needs {} bytes for two KV heads and {} for each of {} "
          "threads, {} can be had; expected fewer --threads, or --device cpu",
          plan.options.device, plan.prompt_meta(unit).id, l.layer, one.heads,
          (one.jobs + one.least_scratch) / jobs, jobs, room));
    }
    // Heads take half of what is left at most: scratch that is too small cuts work to pieces.
    heads = std::min(heads, std::max<std::uint64_t>(1, (room - least) / 2 / one.heads));
    scratch = std::min(scratch, static_cast<std::size_t>((room - heads * one.heads - one.jobs) /
                                                         (jobs * kScratchArrays)));
  }
  plan.heads_at_once = static_cast<Index>(heads);
  plan.scratch_bytes = scratch;
  const auto open_as = [ordinal = device.ordinal](GpuMath math) {
    return [=](const KvHead& head, std::size_t scratch_bytes) {
      return open_device_head(head, ordinal, scratch_bytes, math);
    };
  };
  plan.open_device = open_as(GpuMath::exact);
  if (plan.options.gpu_math == "fast") {
    plan.open_exact = std::exchange(plan.open_device, open_as(GpuMath::fast));
  }
}

}  // namespace

LayerFacts layer_facts(const Plan& plan, const Unit& unit) {
  const LayerMeta& l = plan.layer_meta(unit);
  const Windows w = windows_of(plan.options, l.n, l.nq);
  return {l.n,
          l.d,
          l.dv,
          plan.stream(),
          w.scoring,
          l.fisher.has_value(),
          l.rope_positions,
          l.rope_dim,
          l.hidden,
          l.group(),
          w.queries};
}

int wanted_threads(const ReplayOptions& o) {
  // A thread that waits for a device leaves its core to others; more than 32 streams share queues
  // of work there (CUDA_DEVICE_MAX_CONNECTIONS).
  constexpr int kDeviceThreads = 32;
  if (o.threads > 0) {
    return o.threads;
  }
  return o.device == "cpu" ? omp_get_num_procs() : std::max(omp_get_num_procs(), kDeviceThreads);
}

const Unit& Plan::unit_of(Index job) const {
  return units[static_cast<std::size_t>(job) / entries.size()];
}

const Entry& Plan::entry_of(Index job) const {
  return entries[static_cast<std::size_t>(job) % entries.size()];
}

const Variant& Plan::variant_of(const Unit& unit, const Entry& entry) const {
  const auto it = resolved.find({unit.trace, unit.prompt, unit.layer, entry.variant});
  return it == resolved.end() ? variants[entry.variant] : it->second;
}

Range Plan::row_range(Range job_range) const {
  const auto rows_before = [&](Index job) {
    Index rows = 0;
    const auto whole = static_cast<std::size_t>(job) / entries.size();
    for (std::size_t u = 0; u < whole; ++u) {
      rows += static_cast<Index>(units[u].q_heads.size() * entries.size());
    }
    if (whole < units.size()) {
      rows += static_cast<Index>(units[whole].q_heads.size() *
                                 (static_cast<std::size_t>(job) % entries.size()));
    }
    return rows;
  };
  return {rows_before(job_range.begin), rows_before(job_range.end)};
}

const PromptMeta& Plan::prompt_meta(const Unit& unit) const {
  return readers[unit.trace].meta().prompts[unit.prompt];
}

const LayerMeta& Plan::layer_meta(const Unit& unit) const {
  return prompt_meta(unit).layers[unit.layer];
}

std::string Plan::hash() const {
  std::string text = fmt::format("{} {} {} {} {} {}\n", options.protocol, options.sink,
                                 options.recent, options.queries, options.scores, options.device);
  for (const Unit& u : units) {
    const LayerMeta& l = layer_meta(u);
    text += fmt::format("{} {} {} {} {} {}\n", trace_names[u.trace], prompt_meta(u).id, l.layer,
                        u.kv_head, l.n, fmt::join(u.q_heads, ","));
  }
  for (const Entry& e : entries) {
    const Variant& v = variants[e.variant];
    text += fmt::format("{} {} {} {}\n", v.name(), v.params.canonical(),
                        e.budget ? fmt::format("{}", *e.budget) : "", e.seed);
  }
  for (const auto& [where, v] : resolved) {
    text += fmt::format("{} {}\n", v.name(), v.params.canonical());
  }
  if (stream()) {
    text += fmt::format("eval-every {}\n", options.eval_every);
  }
  if (options.kept) {
    text += "kept\n";
  }
  if (options.per_query) {
    text += "per-query\n";
  }
  if (caches) {
    text += fmt::format("caches {}\n", caches->hash());
  }
  if (!error_layers.empty()) {
    text += "layer-errors\n";
  }
  if (options.device != "cpu" && options.gpu_math != "exact") {
    text += fmt::format("gpu-math {}\n", options.gpu_math);
  }
  return sha256_text(text);
}

Plan make_plan(const ReplayOptions& options) {
  Plan plan;
  plan.options = options;
  if (!options.caches.empty()) {
    take_caches(plan);
  }
  check_options(plan.options);
  const DeviceChoice device = choose_device(options.device);
  if (!plan.caches) {
    plan.variants = expand_algorithms(options.algorithms, options.protocol);
    plan.entries = list_entries(options, plan.variants);
  }
  for (const std::string& path : options.traces) {
    plan.readers.emplace_back(path);
    const std::string name = std::filesystem::path(path).filename().string();
    check_input(
        std::find(plan.trace_names.begin(), plan.trace_names.end(), name) == plan.trace_names.end(),
        fmt::format("{}: two traces are called {}; rows could not tell them apart", path, name));
    plan.trace_names.push_back(name);
  }
  plan.units = list_units(options, plan.readers);
  if (plan.caches) {
    keep_given_units(plan);
  }
  if (!options.export_caches.empty()) {
    CacheExport::check(plan);
  }
  for (const Unit& unit : plan.units) {
    const LayerMeta& l = plan.layer_meta(unit);
    check_input(
        !plan.stream() || l.nq == l.n,
        fmt::format("{}: prompt {} layer {} holds the queries of the last {} of {} tokens, "
                    "expected all for --protocol stream",
                    options.traces[unit.trace], plan.prompt_meta(unit).id, l.layer, l.nq, l.n));
  }
  if (!plan.caches) {
    resolve_variants(plan);
  }
  plan.reads_rope = std::any_of(plan.variants.begin(), plan.variants.end(),
                                [](const Variant& v) { return v.reads_rope(); });
  plan.reads_o_proj = std::any_of(plan.variants.begin(), plan.variants.end(),
                                  [](const Variant& v) { return v.reads_o_proj(); });
  plan_layer_errors(plan);
  plan_device(plan, device);
  return plan;
}

}  // namespace kvbench
