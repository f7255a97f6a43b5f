#include "replay/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "core/error.hpp"
#include "core/sha256.hpp"
#include "replay/cache_export.hpp"
#include "replay/given.hpp"
#include "replay/job.hpp"
#include "replay/layer_errors.hpp"
#include "replay/selection.hpp"
#include "replay/shard_costs.hpp"

namespace kvbench {
namespace {

Entries list_entries(const ReplayOptions& o, const std::vector<Variant>& variants) {
  const Seeds seeds = std::make_shared<std::vector<std::uint64_t>>(parse_seeds(o.seeds));
  const Seeds zero = std::make_shared<std::vector<std::uint64_t>>(1, 0);
  const std::set<double, std::greater<>> budgets(o.budgets.begin(), o.budgets.end());
  Entries out;
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
    check_input(given <= 1 || variants[v].method->info.joint_sizes,
                fmt::format("{}: {}: more than one size, expected one of {}", name,
                            variants[v].params.canonical(), fmt::join(size_names, ", ")));
    check_input(!sizes.empty(),
                fmt::format("{}: no size, expected --budget or one of its parameters {}", name,
                            fmt::join(size_names, ", ")));
    for (const auto& size : sizes) {
      out.add(v, size, variants[v].random() ? seeds : zero);
    }
  }
  return out;
}

std::vector<Unit> list_units(ReplayOptions& o, const std::vector<TraceReader>& readers) {
  std::vector<Unit> out;
  each_layer(readers,
             {o.prompts,
              {o.layers, o.layer_ranges},
              {o.heads, o.head_ranges},
              "--heads",
              &LayerMeta::q_heads},
             [&](std::size_t t, std::size_t p, std::size_t l, const LayerMeta& layer) {
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
             });
  check_input(!out.empty(), "replay: --prompts, --layers and --heads together select nothing");
  return out;
}

// Takes out what only a set asked for and some layer cannot give: `lacking` says what, by variant.
void leave_out(Plan& plan, const std::map<std::size_t, std::string>& lacking) {
  for (const auto& [v, what] : lacking) {
    plan.left_out.push_back(
        fmt::format("note: --algorithm {} leaves out {}", plan.variants[v].by_set, what));
  }
  for (auto it = lacking.rbegin(); it != lacking.rend(); ++it) {
    plan.variants.erase(plan.variants.begin() + static_cast<std::ptrdiff_t>(it->first));
  }
  plan.entries = list_entries(plan.options, plan.variants);
  plan.resolved.clear();
}

// Resolves what methods leave to the trace, and refuses what a layer cannot give, before any row.
void resolve_variants(Plan& plan) {
  std::map<std::size_t, std::string> lacking;
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
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
        if (variant.by_set.empty()) {
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
        plan.resolved.emplace(std::pair{unit.layer_key(), v}, std::move(now));
      }
    }
  }
  if (!lacking.empty()) {  // numbers of variants change: once more, over those that are left
    leave_out(plan, lacking);
    resolve_variants(plan);
  }
}

}  // namespace

LayerFacts layer_facts(const Plan& plan, const Unit& unit) {
  const LayerMeta& l = plan.layer_meta(unit);
  const Windows w = windows_of(plan.options, l);
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
          w.queries,
          plan.options.precision,
          (l.d + l.dv) * bytes_per_element(plan.readers[unit.trace].meta().dtype),
          w.sink.end,
          std::min(plan.options.recent, l.n),
          l.extra,
          l.scores,
          l.window.value_or(0)};
}

const Variant& Plan::variant_of(const Unit& unit, const Entry& entry) const {
  const auto it = resolved.find({unit.layer_key(), entry.variant});
  return it == resolved.end() ? variants[entry.variant] : it->second;
}

Range Plan::layer_units(Index unit) const {
  const auto key = units[unit].layer_key();
  return {std::ranges::lower_bound(units, key, {}, &Unit::layer_key) - units.begin(),
          std::ranges::upper_bound(units, key, {}, &Unit::layer_key) - units.begin()};
}

std::vector<Range> Plan::layers() const {
  std::vector<Range> out;
  for (Index u = 0; u < static_cast<Index>(units.size()); u = out.back().end) {
    out.push_back(layer_units(u));
  }
  return out;
}

Range Plan::shard_jobs() const {
  const auto weight = [&](Range part) {
    return shard_costs ? shard_costs->nanoseconds(part) : part.size();
  };
  const auto boundary = [&](Index i) {
    const Index job = shard_costs ? shard_costs->boundary(i, options.shard_count)
                                  : jobs() * i / options.shard_count;
    if (job == 0 || job == jobs() || !makes_layer_error(unit_of(job))) {
      return job;
    }
    const auto per_unit = static_cast<Index>(entries.size());
    const Range layer = layer_units(job / per_unit);
    const Range whole{layer.begin * per_unit, layer.end * per_unit};
    return weight({whole.begin, job}) < weight({job, whole.end}) ? whole.begin : whole.end;
  };
  return {boundary(options.shard_index - 1), boundary(options.shard_index)};
}

Range Plan::row_range(Range job_range) const {
  const auto rows_before = [&](Index job) {
    const auto per_unit = static_cast<Index>(entries.size());
    Index rows = 0;
    for (Index u = 0; u * per_unit < job; ++u) {
      rows += static_cast<Index>(units[u].q_heads.size()) * std::min(per_unit, job - u * per_unit);
    }
    return rows;
  };
  return {rows_before(job_range.begin), rows_before(job_range.end)};
}

std::string Plan::hash() const {
  Sha256 hash;
  const auto add = [&]<class... T>(fmt::format_string<T...> form, T&&... values) {
    hash.add(fmt::format(form, std::forward<T>(values)...));
  };
  add("{} {} {} {} {} {} {}\n", name(options.protocol), options.sink, options.recent,
      options.queries, name(options.scores), options.device, name(options.precision));
  for (const Unit& u : units) {
    const LayerMeta& l = layer_meta(u);
    add("{} {} {} {} {} {}\n", trace_names[u.trace], prompt_meta(u).id, l.layer, u.kv_head, l.n,
        fmt::join(u.q_heads, ","));
  }
  for (const Entries::Setting& s : entries.settings()) {
    const Variant& v = variants[s.first.variant];
    const std::string setting =
        fmt::format("{} {} {}", v.name(), v.params.canonical(),
                    s.first.budget ? fmt::format("{}", *s.first.budget) : "");
    for (const std::uint64_t seed : *s.seeds) {
      add("{} {}\n", setting, seed);
    }
  }
  for (const auto& [where, v] : resolved) {
    add("{} {}\n", v.name(), v.params.canonical());
  }
  if (stream()) {
    add("eval-every {}\n", options.eval_every);
  }
  if (options.repeat > 1) {
    add("repeat {}\n", options.repeat);
  }
  hash.add(options.kept ? "kept\n" : "");
  hash.add(options.per_query == PerQuery::all    ? "per-query\n"
           : options.per_query == PerQuery::bins ? "per-query bins\n"
                                                 : "");
  if (caches) {
    add("caches {}\n", caches->hash());
  }
  hash.add(error_layers.empty() ? "" : "layer-errors\n");
  return hash.text();
}

std::optional<Variant::Queries> scoring_queries(const Plan& plan, const Unit& unit,
                                                const Variant& variant) {
  const LayerMeta& l = plan.layer_meta(unit);
  const Windows w = windows_of(plan.options, l);
  return plan.stream() ? variant.queries({l.n - l.nq, l.n}, {0, l.n})
                       : variant.queries(w.scoring, w.middle, l.extra);
}

AskedExtra asked_extra(const Plan& plan, const Unit& unit) {
  AskedExtra out;
  const LayerMeta& l = plan.layer_meta(unit);
  for (std::size_t v = 0; v < plan.variants.size() && (!l.extra.empty() || !l.scores.empty());
       ++v) {
    const Variant& variant = plan.variant_of(unit, {v, std::nullopt, 0});
    for (const std::string& name : variant.extra_sets()) {
      if (find_named(l.extra, name) != nullptr) {
        out.sets.insert(name);
      }
    }
    for (const std::string& name : variant.named_scores()) {
      if (find_named(l.scores, name) != nullptr) {
        out.scores.insert(name);
      }
    }
  }
  return out;
}

std::vector<std::string> scoring_notes(const Plan& plan) {
  struct Lacking {
    std::set<std::string> algorithms;
    std::set<Index> units;
  };
  std::map<std::pair<Index, Index>, Lacking> by_queries;  // had, asked
  // All heads of a layer have as many queries: a variant is asked once for each layer.
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
    for (std::size_t v = 0; v < plan.variants.size(); ++v) {
      const Variant& variant = plan.variant_of(unit, {v, std::nullopt, 0});
      const auto queries = scoring_queries(plan, unit, variant);
      if (queries && queries->fewer) {
        Lacking& one = by_queries[{queries->had, queries->asked}];
        one.algorithms.insert(variant.name());
        for (Index u = units.begin; u < units.end; ++u) {
          one.units.insert(u);
        }
      }
    }
  }
  std::vector<std::string> out;
  for (const auto& [counts, one] : by_queries) {
    out.push_back(fmt::format(
        "note: {} of the {} queries that {} would score with are in the trace ({} KV heads){}",
        counts.first, counts.second, fmt::join(one.algorithms, ", "), one.units.size(),
        counts.first == 0 ? "; these rows are degenerate" : ""));
  }
  return out;
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
    plan.variants = expand_algorithms(options.algorithms, options.protocol, &plan.ranges);
    plan.entries = list_entries(options, plan.variants);
  }
  open_traces(options.traces, Require::all, plan.readers, plan.trace_names);
  plan.units = list_units(plan.options, plan.readers);
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
  if (!options.shard_costs.empty()) {
    plan.shard_costs = std::make_shared<ShardCosts>(plan, read_table(options.shard_costs));
    const std::vector<std::string>& notes = plan.shard_costs->notes();
    plan.left_out.insert(plan.left_out.end(), notes.begin(), notes.end());
  }
  plan_device(plan, device);
  return plan;
}

}  // namespace kvbench
