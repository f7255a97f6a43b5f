#include "replay/plan_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/sha256.hpp"
#include "replay/windows.hpp"

namespace kvbench {

LayerFacts layer_facts(const PlanSpec& plan, const Unit& unit) {
  const LayerMeta& l = plan.layer_meta(unit);
  const Windows w = windows_of(plan.options, l);
  return {.n = l.n,
          .d = l.d,
          .dv = l.dv,
          .stream = plan.stream(),
          .scoring = w.scoring,
          .has_fisher = l.fisher.has_value(),
          .rope_positions = l.rope_positions,
          .hidden = l.hidden,
          .group = l.group(),
          .evaluated = w.queries,
          .element_bytes = bytes_per_element(plan.options.precision),
          .extra = l.extra,
          .scores = l.scores,
          .window = l.window.value_or(0)};
}

const Variant& PlanSpec::variant_of(const Unit& unit, std::size_t variant) const {
  for (const Index head : {unit.kv_head, kAllHeads}) {
    const auto it = resolved.find({unit.layer_key(), head, variant});
    if (it != resolved.end()) {
      return it->second;
    }
  }
  return variants[variant];
}

std::vector<Unit> PlanSpec::distinct_units(const Unit& unit, std::size_t variant) const {
  std::vector<Unit> out{unit};
  if (!resolved.contains({unit.layer_key(), unit.kv_head, variant})) {
    return out;
  }
  out.clear();
  for (Index head = 0; head < layer_meta(unit).kv_heads; ++head) {
    out.push_back(unit);
    out.back().kv_head = head;
  }
  return out;
}

Range PlanSpec::layer_units(Index unit) const {
  const auto key = units[unit].layer_key();
  return {std::ranges::lower_bound(units, key, {}, &Unit::layer_key) - units.begin(),
          std::ranges::upper_bound(units, key, {}, &Unit::layer_key) - units.begin()};
}

std::vector<Range> PlanSpec::layers() const {
  std::vector<Range> out;
  for (Index u = 0; u < static_cast<Index>(units.size()); u = out.back().end) {
    out.push_back(layer_units(u));
  }
  return out;
}

std::vector<std::pair<double, double>> PlanSpec::budgets_of_cache() const {
  if (options.protocol != Protocol::prefill || options.total_budget) {
    return {};
  }
  double middle = 0.0;
  double all = 0.0;
  for (const Unit& unit : units) {
    const Windows w = windows_of(options, layer_meta(unit));
    const auto pair = static_cast<double>(pair_bytes(unit));
    middle += pair * static_cast<double>(w.middle.size());
    all += pair * static_cast<double>(w.seen());
  }
  std::vector<std::pair<double, double>> out;
  for (const double budget :
       std::set<double, std::greater<>>(options.budgets.begin(), options.budgets.end())) {
    out.emplace_back(budget, 1.0 - (1.0 - budget) * middle / all);
  }
  return out;
}

Range PlanSpec::shard_jobs() const {
  const auto boundary = [&](Index i) {
    const Index job = jobs() * i / options.shard_count;
    if (job == 0 || job == jobs() || !makes_layer_error(unit_of(job))) {
      return job;
    }
    const auto per_unit = static_cast<Index>(entries.size());
    const Range layer = layer_units(job / per_unit);
    const Range whole{layer.begin * per_unit, layer.end * per_unit};
    return job - whole.begin < whole.end - job ? whole.begin : whole.end;
  };
  return {boundary(options.shard_index - 1), boundary(options.shard_index)};
}

Range PlanSpec::row_range(Range job_range) const {
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

std::string PlanSpec::hash() const {
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
        fmt::format("{} {} {}", v.label(), v.label_params(),
                    s.first.budget ? fmt::format("{}", *s.first.budget) : "");
    for (const std::uint64_t seed : *s.seeds) {
      add("{} {}\n", setting, seed);
    }
  }
  for (const auto& [where, v] : resolved) {
    add("{} {}\n", v.name(), v.params.canonical());
  }
  hash.add(options.total_budget ? "total-budget\n" : "");
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
  if (!caches_sha256.empty()) {
    add("caches {}\n", caches_sha256);
  }
  hash.add(error_layers.empty() ? "" : "layer-errors\n");
  return hash.text();
}

std::optional<Variant::Queries> scoring_queries(const PlanSpec& plan, const Unit& unit,
                                                const Variant& variant) {
  const LayerMeta& l = plan.layer_meta(unit);
  const Windows w = windows_of(plan.options, l);
  return plan.stream() ? variant.queries({l.n - l.nq, l.n}, {0, l.n})
                       : variant.queries(w.scoring, w.middle, l.extra);
}

ExtraNames extra_names(const PlanSpec& plan, const Unit& unit) {
  ExtraNames out;
  const LayerMeta& l = plan.layer_meta(unit);
  for (std::size_t v = 0; v < plan.variants.size() && (!l.extra.empty() || !l.scores.empty());
       ++v) {
    for (const Unit& one : plan.distinct_units(unit, v)) {
      const Variant& variant = plan.variant_of(one, v);
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
  }
  return out;
}

std::vector<std::string> scoring_notes(const PlanSpec& plan) {
  struct Lacking {
    std::set<std::string> algorithms;
    std::set<Index> units;
  };
  std::map<std::pair<Index, Index>, Lacking> by_queries;  // had, asked
  // All heads of a layer have equally many queries.
  for (const Range units : plan.layers()) {
    const Unit& unit = plan.units[units.begin];
    for (std::size_t v = 0; v < plan.variants.size(); ++v) {
      const std::vector<Unit> distinct = plan.distinct_units(unit, v);
      for (const Unit& head : distinct) {
        const Variant& variant = plan.variant_of(head, v);
        const auto queries = scoring_queries(plan, head, variant);
        if (!queries || !queries->fewer) {
          continue;
        }
        Lacking& one = by_queries[{queries->had, queries->asked}];
        one.algorithms.insert(variant.name());
        for (Index u = units.begin; u < units.end; ++u) {
          if (distinct.size() == 1 || plan.units[u].kv_head == head.kv_head) {
            one.units.insert(u);
          }
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

}  // namespace kvbench
