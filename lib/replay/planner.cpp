#include "replay/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "algorithms/policy.hpp"
#include "core/error.hpp"
#include "gpu/device.hpp"
#include "replay/cache_export.hpp"
#include "replay/loaded_caches.hpp"
#include "replay/resources.hpp"
#include "replay/selection.hpp"

namespace kvbench {
namespace {

Entries list_entries(const ReplayOptions& o, const std::vector<Variant>& variants) {
  const Seeds seeds = std::make_shared<std::vector<std::uint64_t>>(parse_seeds(o.seeds));
  const Seeds seed_0 = std::make_shared<std::vector<std::uint64_t>>(1, 0);
  const std::set<double, std::greater<>> budgets(o.budgets.begin(), o.budgets.end());
  Entries out;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    const std::string name = variants[v].name();
    const std::vector<std::string>& size_names = variants[v].method->info.sizes;
    std::vector<std::optional<double>> sizes(budgets.begin(), budgets.end());
    if (variants[v].policy != nullptr) {
      sizes = {variants[v].policy->budget};
    } else if (variants[v].sized() || (variants[v].method->info.must_fit && budgets.empty())) {
      sizes = {std::nullopt};
    }
    const auto fixed_sizes =
        std::count_if(size_names.begin(), size_names.end(),
                      [&](const std::string& s) { return !variants[v].params.is_auto(s); });
    check_input(fixed_sizes <= 1 || variants[v].method->info.joint_sizes,
                fmt::format("{}: {}: more than one size, expected one of {}", name,
                            variants[v].params.canonical(), fmt::join(size_names, ", ")));
    check_input(!sizes.empty(),
                fmt::format("{}: no size, expected --budget or one of its parameters {}", name,
                            fmt::join(size_names, ", ")));
    for (const auto& size : sizes) {
      out.add(v, size, variants[v].random() ? seeds : seed_0);
    }
  }
  return out;
}

std::vector<Unit> list_units(ReplayOptions& o, const std::vector<TraceReader>& readers) {
  std::vector<Unit> out;
  for_each_layer(readers, o, "--heads", &LayerMeta::q_heads,
                 [&](std::size_t t, std::size_t p, std::size_t l, const LayerMeta& layer) {
                   for (Index kv = 0; kv < layer.kv_heads; ++kv) {
                     Unit unit{t, p, l, kv, {}};
                     for (Index h = kv * layer.group(); h < (kv + 1) * layer.group(); ++h) {
                       if (selected(o.heads, h)) {
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

// Notes the layers that list_units leaves out.
void note_shared_caches(PlanSpec& plan) {
  std::set<Index> shared;
  for (const TraceMeta& trace : plan.traces) {
    for (const PromptMeta& prompt : trace.prompts) {
      for (const LayerMeta& layer : prompt.layers) {
        if (layer.shares_cache_of) {
          shared.insert(layer.layer);
        }
      }
    }
  }
  if (plan.options.layers.empty() && !shared.empty()) {
    plan.notes.push_back(fmt::format(
        "note: layers {} share the caches of others and are left out; --layers takes them",
        fmt::join(shared, ",")));
  }
}

// `which`: ascending.
void remove_variants(PlanSpec& plan, const std::vector<std::size_t>& which) {
  for (auto v = which.rbegin(); v != which.rend(); ++v) {
    plan.variants.erase(plan.variants.begin() + static_cast<std::ptrdiff_t>(*v));
  }
  plan.entries = list_entries(plan.options, plan.variants);
  plan.resolved.clear();
  plan.lacking.clear();
}

// Removes variants of sets and grids. `why`: name and reason, by variant.
void skip_variants(PlanSpec& plan, const std::map<std::size_t, std::string>& why) {
  std::vector<std::size_t> which;
  for (const auto& [v, what] : why) {
    const Variant& variant = plan.variants[v];
    plan.notes.push_back(
        fmt::format("note: --algorithm {} skips {}",
                    variant.by_set.empty() ? variant.name() + ":grid" : variant.by_set, what));
    which.push_back(v);
  }
  remove_variants(plan, which);
}

// Notes how many layers have a window, and the variants that are infeasible in some layers.
void note_lacking(PlanSpec& plan) {
  std::set<std::string> unplaced;  // names of algorithms that no window can hide
  std::map<std::size_t, std::vector<const std::string*>> others;
  for (const auto& [where, why] : plan.lacking) {
    const Variant& variant = plan.variants[where.second];
    if (variant.fits_windows()) {
      others[where.second].push_back(&why);
    } else {
      unplaced.insert(variant.name());
    }
  }
  const std::vector<Range> layers = plan.layers();
  std::set<Index> all;  // whatever prompts have them
  std::set<Index> windowed;
  for (const Range units : layers) {
    const LayerMeta& l = plan.layer_meta(plan.units[units.begin]);
    all.insert(l.layer);
    if (l.window.value_or(0) > 0) {
      windowed.insert(l.layer);
    }
  }
  if (!unplaced.empty()) {
    plan.notes.push_back(fmt::format(
        "note: {} of {} layers have a window: rows of {} are infeasible there (entries without a "
        "position); --layers global leaves those layers out",
        windowed.size(), all.size(), fmt::join(unplaced, ", ")));
  }
  for (const auto& [v, reasons] : others) {
    plan.notes.push_back(fmt::format("note: rows of {} are infeasible in {} of {} layers: {}",
                                     plan.variants[v].name(), reasons.size(), layers.size(),
                                     *reasons.front()));
  }
}

// Removes variants with the settings of an earlier one in all layers. `first_equal`: by variant,
// the first with its settings. What is left counts as named, or as typed, if either was.
bool drop_repeated(PlanSpec& plan, const std::vector<std::size_t>& first_equal) {
  std::vector<std::size_t> which;
  for (std::size_t v = 0; v < first_equal.size(); ++v) {
    if (first_equal[v] != v) {
      which.push_back(v);
      Variant& left = plan.variants[first_equal[v]];
      if (plan.variants[v].by_set.empty()) {
        left.by_set.clear();
      }
      left.declared = left.declared && plan.variants[v].declared;
    }
  }
  if (!which.empty()) {
    remove_variants(plan, which);
  }
  return !which.empty();
}

// Resolves parameters that depend on the layer. Of settings of sets and grids that are then equal
// in all layers one is left; equal in some layers only, one is skipped with a note. So is a variant
// of a set that can run in no layer; of one that cannot in some, plan.lacking gets the reasons.
// Throws InputError if typed settings are equal, or if a named method needs what a layer lacks.
void resolve_variants(PlanSpec& plan) {
  std::map<std::size_t, std::string> skipped;  // by variant that has run in no layer so far
  std::size_t layers = 0;
  std::map<std::size_t, std::string> equal_here;  // the first that equals another in some layer
  std::vector<std::size_t> first_equal(plan.variants.size(), 0);  // in all layers so far
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
    const LayerMeta& l = plan.layer_meta(unit);
    const LayerFacts facts = layer_facts(plan, unit);
    std::map<std::pair<std::string, std::string>, std::size_t> here;
    std::map<std::tuple<std::size_t, std::string, std::string>, std::size_t> so_far;
    for (std::size_t v = 0; v < plan.variants.size(); ++v) {
      const Variant& variant = plan.variants[v];
      std::vector<Variant> now;
      try {
        now = variant.policy == nullptr ? std::vector{variant}
                                        : policy_layer(variant, l.layer, l.kv_heads);
        for (Variant& part : now) {
          part = part.resolved(facts);
        }
      } catch (const InputError& e) {
        const std::string where =
            fmt::format("{}: prompt {} layer {}: {}", plan.trace_names[unit.trace],
                        plan.prompt_meta(unit).id, l.layer, e.what());
        if (variant.by_set.empty() && !plan.options.infeasible_if_named) {
          throw InputError(where);
        }
        plan.lacking.emplace(std::pair(unit.layer_key(), v), e.what());
        if (layers == 0) {
          skipped.emplace(v, variant.name() + ": " + where);
        }
        first_equal[v] =
            so_far.emplace(std::tuple(first_equal[v], variant.label(), std::string()), v)
                .first->second;
        continue;
      }
      skipped.erase(v);
      const Variant& first = now.front();
      const auto [equal, is_new] = here.emplace(std::pair(first.label(), first.label_params()), v);
      if (!is_new) {
        const std::size_t other = variant.declared ? v : equal->second;
        const std::string what =
            fmt::format("{}: duplicate {} after `auto` is resolved (prompt {} layer {})",
                        first.label(), first.label_params(), plan.prompt_meta(unit).id, l.layer);
        check_input(plan.variants[other].declared, "--algorithm " + what);
        if (equal_here.empty()) {
          equal_here.emplace(other, what);
        }
      }
      first_equal[v] =
          so_far.emplace(std::tuple(first_equal[v], first.label(), first.label_params()), v)
              .first->second;
      if (variant.policy == nullptr && first.params.canonical() == variant.params.canonical()) {
        continue;
      }
      for (std::size_t part = 0; part < now.size(); ++part) {
        const Index head = now.size() == 1 ? PlanSpec::kAllHeads : static_cast<Index>(part);
        plan.resolved.emplace(std::tuple{unit.layer_key(), head, v}, std::move(now[part]));
      }
    }
    ++layers;
  }
  // The indices of variants change where some are removed.
  if (!skipped.empty()) {
    skip_variants(plan, skipped);
    resolve_variants(plan);
  } else if (drop_repeated(plan, first_equal)) {
    resolve_variants(plan);
  } else if (!equal_here.empty()) {
    skip_variants(plan, equal_here);
    resolve_variants(plan);
  } else {
    note_lacking(plan);
  }
}

Index replayed_heads(const PlanSpec& plan, Range units) {
  Index out = 0;
  for (Index u = units.begin; u < units.end; ++u) {
    out += static_cast<Index>(plan.units[u].q_heads.size());
  }
  return out;
}

// Sets error_layers, and notes the layers that OUT.layers.csv skips.
void plan_layer_errors(PlanSpec& plan) {
  std::vector<std::string> notes;  // on layers without a projection
  Index partial = 0;               // layers without some of their query heads
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
    const LayerMeta& layer = plan.layer_meta(unit);
    if (layer.hidden == 0) {
      notes.push_back(fmt::format(
          "note: OUT.layers.csv skips {}: prompt {} layer {}: the trace has no output projection "
          "(o_proj)",
          plan.trace_names[unit.trace], plan.prompt_meta(unit).id, layer.layer));
    } else if (replayed_heads(plan, units) < layer.q_heads) {
      ++partial;
    } else {
      plan.error_layers.insert(unit.layer_key());
    }
  }
  if (partial > 0) {
    // Without --heads only caches leave heads out.
    const char* what = plan.options.heads.empty() ? "the caches lack" : "--heads excludes";
    plan.notes.push_back(
        plan.error_layers.empty()
            ? fmt::format("note: OUT.layers.csv is not written: {} query heads of every layer",
                          what)
            : fmt::format("note: OUT.layers.csv skips {} layers: {} some of their query heads",
                          partial, what));
  }
  if (!plan.error_layers.empty()) {
    plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
  }
}

// Opens the files of --caches. They determine the protocol, its windows and the entries.
void load_caches(Plan& plan) {
  auto caches = std::make_shared<const LoadedCaches>(plan.options.caches);
  const CachesMeta& meta = caches->meta();
  plan.options.protocol = Protocol::prefill;  // LoadedCaches rejects streams
  plan.options.sink = meta.sink;
  plan.options.recent = meta.recent;
  plan.options.queries = meta.queries;
  caches->check_traces(plan.options.traces);
  caches->list(plan.variants, plan.entries);
  plan.caches_sha256 = caches->sha256();
  plan.caches = std::move(caches);
}

// OUT.kept.csv and caches files have one set per KV head.
void check_query_head_sets(const PlanSpec& plan) {
  const auto several = [](const Variant& variant) {
    bool out = variant.by_query_head();
    if (variant.policy != nullptr) {
      for_each_part(*variant.policy,
                    [&](const Policy::Choice& part) { out |= part.variant.by_query_head(); });
    }
    return out;
  };
  for (const Variant& variant : plan.variants) {
    check_input(!several(variant) || (!plan.options.kept && plan.options.export_caches.empty()),
                fmt::format("--kept, --export-caches: got {} with {}=query-head, whose query heads "
                            "have a cache each; expected {}=kv-head",
                            variant.label(), kStoreParam, kStoreParam));
  }
}

// Removes units that no caches file has. Throws InputError if none remains.
void keep_loaded_units(Plan& plan) {
  std::erase_if(plan.units,
                [&](const Unit& unit) { return !plan.caches->holds(cache_place(plan, unit)); });
  if (plan.units.empty()) {
    throw InputError(fmt::format("{}: no cache for the selected prompts, layers and heads",
                                 plan.options.caches.front()));
  }
}

}  // namespace

Plan make_plan(const ReplayOptions& options) {
  Plan plan;
  plan.options = options;
  if (!options.caches.empty()) {
    load_caches(plan);
  }
  check_options(plan.options);
  const DeviceChoice device = choose_device(options.device);
  if (!plan.caches) {
    if (!options.algorithms.empty() || options.policies.empty()) {
      plan.variants = expand_algorithms(options.algorithms, options.protocol, &plan.ranges);
    }
    add_policies(options.policies, options.scores, plan.variants);
    plan.entries = list_entries(options, plan.variants);
  }
  open_traces(options.traces, Require::all, plan.readers, plan.trace_names);
  for (const TraceReader& reader : plan.readers) {
    plan.traces.push_back(reader.meta());
  }
  number_layers(plan.readers, plan.options.layers);
  for (const Variant& variant : plan.variants) {
    for (std::size_t t = 0; variant.policy != nullptr && t < plan.traces.size(); ++t) {
      check_model(*variant.policy, plan.trace_names[t], plan.traces[t].model);
    }
  }
  plan.units = list_units(plan.options, plan.readers);
  note_shared_caches(plan);
  if (plan.caches) {
    keep_loaded_units(plan);
  }
  if (!options.export_caches.empty()) {
    check_cache_export(plan);
  }
  check_query_head_sets(plan);
  for (const Unit& unit : plan.units) {
    const LayerMeta& l = plan.layer_meta(unit);
    check_input(
        !plan.stream() || l.nq == l.n,
        fmt::format("{}: prompt {} layer {} stores the queries of the last {} of {} tokens, "
                    "expected all for --protocol stream",
                    options.traces[unit.trace], plan.prompt_meta(unit).id, l.layer, l.nq, l.n));
    check_input(!plan.retrieval() || l.window.value_or(0) == 0,
                fmt::format("{}: prompt {} layer {} has a window of {} tokens, which --protocol "
                            "retrieval does not support; expected --layers global",
                            options.traces[unit.trace], plan.prompt_meta(unit).id, l.layer,
                            l.window.value_or(0)));
  }
  if (!plan.caches) {
    resolve_variants(plan);
  }
  const auto note_inputs = [&plan](const Variant& v) {
    const JobFacts facts = v.facts();
    plan.reads_rope |= facts.rope;
    plan.reads_o_proj |= facts.o_proj;
  };
  std::ranges::for_each(plan.variants, note_inputs);
  for (const auto& [where, variant] : plan.resolved) {
    note_inputs(variant);
  }
  plan_layer_errors(plan);
  plan_device(plan, device);
  return plan;
}

}  // namespace kvbench
