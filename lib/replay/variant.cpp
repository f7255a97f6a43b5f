// Members of Variant (replay/grid.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "algorithms/composed_reads.hpp"
#include "algorithms/composition.hpp"
#include "algorithms/nested_methods.hpp"
#include "algorithms/stored.hpp"
#include "core/error.hpp"
#include "replay/grid.hpp"
#include "replay/policy.hpp"
#include "replay/query_head_sets.hpp"

namespace kvbench {

std::string Variant::name() const {
  return method->info.name + (rest != nullptr        ? "+" + rest->info.name
                              : quantizer != nullptr ? "@" + quantizer->info.name
                                                     : "");
}

std::string Variant::drawn_as() const {
  return method->info.acts_as != nullptr ? method->info.acts_as(params).info.name : name();
}

const std::vector<std::string>& Variant::sizes() const {
  static const std::vector<std::string> composed = MethodInfo().sizes;
  return rest == nullptr ? method->info.sizes : composed;
}

std::vector<Variant::Part> Variant::parts() const {
  std::vector<Part> out;
  if (quantizer != nullptr) {
    out.push_back({method, stored_part(*method, params), part_prefix(*method)});
  } else if (rest == nullptr) {
    out.push_back({method, params, ""});
  } else {
    for (const Method* m : {method, rest}) {
      out.push_back({m, part_params(*m, params), part_prefix(*m)});
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {  // `out` grows: a named method may name others
    const Part whole = out[i];
    for (const Method* m : named_methods(*whole.method, whole.params)) {
      out.push_back({m, part_params(*m, whole.params), whole.prefix + part_prefix(*m)});
    }
  }
  if (quantizer != nullptr) {
    out.push_back({quantizer, params, ""});
  }
  return out;
}

bool Variant::any_part(bool MethodInfo::*fact) const {
  return std::ranges::any_of(parts(), [&](const Part& p) { return p.method->info.*fact; });
}

bool Variant::any_part(bool (*MethodInfo::*fact)(const Params&)) const {
  return std::ranges::any_of(parts(), [&](const Part& p) {
    const auto asks = p.method->info.*fact;
    return asks != nullptr && asks(p.params);
  });
}

bool Variant::sees_queries() const {
  return sees_evaluated() || std::ranges::any_of(parts(), [](const Part& p) {
           return p.method->info.scores_with(p.params);
         });
}

bool Variant::random() const {
  if (policy != nullptr) {
    bool any = false;
    for_each_part(*policy, [&](const Policy::Part& part) { any |= part.variant.random(); });
    return any;
  }
  return std::ranges::any_of(parts(),
                             [](const Part& p) { return p.method->info.random(p.params); });
}

Scope Variant::scope() const {
  if (policy != nullptr) {
    Scope widest = Scope::head;
    for_each_part(*policy, [&](const Policy::Part& part) {
      widest = std::max(widest, part.variant.scope());
    });
    return widest;
  }
  const Part first = parts().front();
  const MethodInfo& info = first.method->info;
  return info.scope_of != nullptr ? info.scope_of(first.params) : info.scope;
}

std::vector<std::string> Variant::Part::names_read(NamesHook hook) const {
  return method->info.*hook == nullptr ? std::vector<std::string>() : (method->info.*hook)(params);
}

std::vector<std::string> Variant::names_read(NamesHook hook) const {
  std::vector<std::string> out;
  for (const Part& p : parts()) {
    const auto names = p.names_read(hook);
    out.insert(out.end(), names.begin(), names.end());
  }
  return out;
}

std::string Variant::scores_text(Scores scores) const {
  if (!declared_scores.empty()) {
    return declared_scores;
  }
  if (!sees_queries()) {
    return "none";
  }
  // A part that reads only extra sets or stored scores sees nothing beyond their prefix: `past`.
  const bool own = std::ranges::any_of(parts(), [](const Part& p) {
    const MethodInfo& info = p.method->info;
    return info.sees_evaluated ||
           (info.scores_with(p.params) && p.names_read(&MethodInfo::extra_sets).empty() &&
            p.names_read(&MethodInfo::named_scores).empty());
  });
  return std::string(kvbench::name(own ? scores : Scores::past));
}

std::optional<Variant::Queries> Variant::queries(Range scoring, Range middle,
                                                 std::span<const ExtraSetInfo> extra) const {
  std::optional<Queries> out;
  for (const Part& p : parts()) {
    const MethodInfo& info = p.method->info;
    if (!info.scores_with(p.params) || !p.names_read(&MethodInfo::named_scores).empty()) {
      continue;
    }
    const auto sets = p.names_read(&MethodInfo::extra_sets);
    if (!sets.empty()) {
      Index count = 0;
      for (const std::string& name : sets) {
        const ExtraSetInfo* set = find_named(extra, name);
        count += set == nullptr ? 0 : set->queries();
      }
      if (info.query_window != nullptr) {
        count = std::min(count, info.query_window(p.params));
      }
      out = out.value_or(Queries{});
      out->had = std::max(out->had, count);
      out->asked = std::max(out->asked, count);
      out->none = out->none || count == 0;
      continue;
    }
    Range asked = {0, scoring.end};
    if (info.middle_queries_only != nullptr && info.middle_queries_only(p.params)) {
      asked = {middle.begin, std::min(middle.end, scoring.end)};
    } else if (info.query_window != nullptr) {
      asked.begin = std::max<Index>(0, scoring.end - info.query_window(p.params));
    }
    const Index had = Range{std::max(asked.begin, scoring.begin), asked.end}.size();
    out = out.value_or(Queries{});
    out->had = std::max(out->had, had);
    out->asked = std::max(out->asked, asked.size());
    out->none = out->none || had == 0;
    out->fewer = out->fewer || had < asked.size();
  }
  return out;
}

void Variant::check_window(const LayerFacts& layer) const {
  if (layer.window == 0) {
    return;
  }
  if (layer.stream) {
    throw InputError(fmt::format(
        "{}: the layer has a window of {} tokens, which --protocol stream does not support; "
        "expected --protocol prefill, or --layers without it",
        name(), layer.window));
  }
  for (const Part& p : parts()) {
    // A@Q holds what A keeps, at A's positions.
    if (!p.method->info.fits_windows()) {
      throw InputError(
          fmt::format("{}: makes entries without a position, which the layer's window of {} tokens "
                      "cannot hide; "
                      "expected a method that keeps tokens, or --layers without it",
                      p.method->info.name, layer.window));
    }
  }
}

Variant Variant::resolved(const LayerFacts& layer) const {
  check_window(layer);
  std::map<std::string, std::string> changed;
  for (const Part& p : parts()) {
    if (p.method->info.resolve != nullptr) {
      for (const auto& [key, value] : p.method->info.resolve(p.params, layer)) {
        changed[p.prefix + key] = value;
      }
    }
  }
  Variant out = *this;
  out.params = params.with(changed);
  return out;
}

Task Variant::surveyed(const Task& task) const {
  if (quantizer != nullptr) {
    return surveyed_part(*method, *quantizer, task, params);
  }
  return rest == nullptr ? task : first_task(*method, task, params);
}

Survey Variant::survey(const Task& task) const {
  return method->survey(task, parts().front().params);
}

std::vector<Share> Variant::share(std::span<const Survey> surveys) const {
  if (quantizer != nullptr) {
    return stored_shares(*method, *quantizer, {surveys.begin(), surveys.end()}, params);
  }
  return method->share(surveys, parts().front().params);
}

std::optional<Index> Variant::allowed_bytes(const Task& task) const {
  if (task.share == nullptr) {
    return task.budget_bytes;
  }
  if (quantizer != nullptr) {
    return stored_bytes(*method, *quantizer, shape_of(task.head), task.share->tokens, params);
  }
  return rest == nullptr ? task.share->bytes.value_or(task.share->tokens * task.head.pair_bytes())
                         : composition_bytes(task, params);
}

bool Variant::runs_under(Protocol protocol) const {
  if (by_query_head() && protocol != Protocol::prefill) {
    return false;
  }
  const Method& last = rest != nullptr ? *rest : *method;
  switch (protocol) {
    case Protocol::prefill: return method->compress != nullptr && last.compress != nullptr;
    case Protocol::stream:
      return rest == nullptr && quantizer == nullptr && method->open_stream != nullptr;
    case Protocol::retrieval:  // of `exact`, which has one size, there is no @Q
      return last.open_reads != nullptr && (quantizer == nullptr || method->compress == nullptr);
  }
  return false;
}

Index Variant::job_bytes(const LayerFacts& layer, std::optional<double> budget) const {
  constexpr double kCoding = 2;   // A@Q: what A holds, and the same decoded
  constexpr double kOwnHead = 2;  // store=query-head: the head of one query head
  const auto most = static_cast<Index>((quantizer == nullptr && budget ? *budget : 1.0) *
                                       static_cast<double>(layer.n));
  double copies = (quantizer != nullptr ? kCoding : 0.0) + (by_query_head() ? kOwnHead : 0.0);
  Index matrices = 0;
  for (const Part& p : parts()) {
    const MethodInfo& info = p.method->info;
    copies += info.copies;
    if (info.matrix_bytes != nullptr) {
      const bool fixed = p.params.values().contains("tokens") && !p.params.is_auto("tokens");
      const Index kept = fixed ? std::min(layer.n, p.params.integer("tokens")) : most;
      matrices += info.matrix_bytes(p.params, layer, kept);
    }
  }
  return static_cast<Index>(copies * static_cast<double>(4 * layer.n * (layer.d + layer.dv))) +
         matrices;
}

Compressed Variant::compress(const Task& task) const {
  if (quantizer != nullptr) {
    return store(*method, *quantizer, task, params);
  }
  return rest == nullptr ? method->compress(task, params) : compose(*method, *rest, task, params);
}

std::unique_ptr<ReadIndex> Variant::open_reads(const Task& task) const {
  if (quantizer != nullptr) {
    return code_reads(*method, *quantizer, task, params);
  }
  return rest == nullptr ? method->open_reads(task, params)
                         : compose_reads(*method, *rest, task, params);
}

bool Variant::sized() const {
  return sizes().empty() || std::any_of(sizes().begin(), sizes().end(),
                                        [&](const std::string& s) { return !params.is_auto(s); });
}

void Variant::check() const {
  if (by_query_head() && scope() != Scope::head) {
    throw InputError(fmt::format(
        "{}: parameter {}: got query-head, expected kv-head: its heads share one budget", name(),
        kStoreParam));
  }
  for (const Part& p : parts()) {
    if (p.method->info.check != nullptr) {
      p.method->info.check(p.params);
    }
  }
  if (rest != nullptr) {
    check_composition(*rest, params);
  }
  if (quantizer != nullptr) {
    check_stored(*method, *quantizer, params);
  }
}

}  // namespace kvbench
