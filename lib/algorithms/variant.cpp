// Members of Variant.
#include "algorithms/variant.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "algorithms/nested_methods.hpp"
#include "core/error.hpp"

namespace kvbench {

std::string Variant::drawn_as() const {
  const std::string other = facts().draws_as;
  return other.empty() ? name() : other;
}

std::vector<Variant::Use> Variant::uses() const {
  std::vector<Use> out{{method, params, ""}};
  for (std::size_t i = 0; i < out.size(); ++i) {  // `out` grows: a named method may name others
    const Use whole = out[i];
    for (const Component& c : whole.method->components) {
      out.push_back({c.method, c.params(*c.method, whole.params), whole.prefix + c.prefix});
    }
    for (const Method* m : named_methods(*whole.method, whole.params)) {
      out.push_back({m, part_params(*m, whole.params), whole.prefix + part_prefix(*m)});
    }
  }
  return out;
}

JobFacts Variant::merged_facts() const {
  const std::vector<Use> all = uses();
  JobFacts out = all.front().method->info.facts(params);
  for (const Use& use : std::span(all).subspan(1)) {
    const JobFacts more = use.method->info.facts(use.params);
    out.scoring.insert(out.scoring.end(), more.scoring.begin(), more.scoring.end());
    out.evaluated |= more.evaluated;
    out.rope |= more.rope;
    out.o_proj |= more.o_proj;
    out.random |= more.random;
  }
  return out;
}

bool Variant::random() const {
  return policy_facts ? policy_facts->random : facts().random;
}

Scope Variant::scope() const {
  return policy_facts ? policy_facts->scope : facts().scope;
}

namespace {

std::vector<std::string> names_of(const JobFacts& facts, std::vector<std::string> Scoring::*names) {
  std::vector<std::string> out;
  for (const Scoring& s : facts.scoring) {
    out.insert(out.end(), (s.*names).begin(), (s.*names).end());
  }
  return out;
}

}  // namespace

std::vector<std::string> Variant::extra_sets() const {
  return names_of(facts(), &Scoring::sets);
}

std::vector<std::string> Variant::named_scores() const {
  return names_of(facts(), &Scoring::stored);
}

std::string Variant::scores_text(Scores scores) const {
  if (!declared_scores.empty()) {
    return declared_scores;
  }
  const JobFacts own = facts();
  if (!own.sees_queries()) {
    return "none";
  }
  // Extra sets and stored scores see nothing beyond their prefix: `past`.
  const bool of_prompt = own.evaluated || std::ranges::any_of(own.scoring, [](const Scoring& s) {
                           return s.sets.empty() && s.stored.empty();
                         });
  return std::string(kvbench::name(of_prompt ? scores : Scores::past));
}

std::optional<Variant::Queries> Variant::queries(Range scoring, Range middle,
                                                 std::span<const ExtraSetInfo> extra) const {
  std::optional<Queries> out;
  for (const Scoring& s : facts().scoring) {
    if (!s.stored.empty()) {
      continue;
    }
    out = out.value_or(Queries{});
    Range asked = {0, scoring.end};
    if (!s.sets.empty()) {
      asked.end = 0;
      for (const std::string& name : s.sets) {
        const ExtraSetInfo* set = find_named(extra, name);
        asked.end += set == nullptr ? 0 : set->queries();
      }
      asked.end = std::min(asked.end, s.last.value_or(asked.end));
    } else if (s.middle) {
      asked = {middle.begin, std::min(middle.end, scoring.end)};
    } else if (s.last) {
      asked.begin = std::max<Index>(0, scoring.end - *s.last);
    }
    const Index had = s.sets.empty() ? Range{std::max(asked.begin, scoring.begin), asked.end}.size()
                                     : asked.size();
    out->had = std::max(out->had, had);
    out->asked = std::max(out->asked, asked.size());
    out->none = out->none || had == 0;
    out->fewer = out->fewer || had < asked.size();
  }
  return out;
}

const Method* Variant::unplaced() const {
  for (const Use& use : uses()) {
    if (use.method->joint == 0 && use.method->info.holds > Holds::placed) {
      return use.method;
    }
  }
  return nullptr;
}

void Variant::check_window(const LayerFacts& layer) const {
  if (layer.window == 0) {
    return;
  }
  if (layer.stream) {
    throw InputError(fmt::format(
        "{}: the layer has a window of {} tokens, which --protocol stream does not support; "
        "expected --protocol prefill, or --layers global",
        name(), layer.window));
  }
  if (const Method* other = unplaced()) {
    throw InputError(
        fmt::format("{}: makes entries without a position, which the layer's window of {} tokens "
                    "cannot hide; expected a method that keeps tokens, or --layers global",
                    other->info.name, layer.window));
  }
}

Variant Variant::resolved(const LayerFacts& layer) const {
  check_window(layer);
  std::map<std::string, std::string> changed;
  for (const Use& use : uses()) {
    if (use.method->info.resolve != nullptr) {
      for (const auto& [key, value] : use.method->info.resolve(use.params, layer)) {
        changed[use.prefix + key] = value;
      }
    }
  }
  Variant out = *this;
  out.params = params.with(changed);
  out.known = std::make_shared<const JobFacts>(out.merged_facts());
  return out;
}

std::optional<Index> Variant::allowed_bytes(const Task& task) const {
  if (task.share == nullptr) {
    return task.budget_bytes;
  }
  return task.share->bytes.value_or(task.share->tokens * task.head.pair_bytes());
}

bool Variant::runs_under(Protocol protocol) const {
  switch (protocol) {
    case Protocol::prefill: return method->compress != nullptr;
    case Protocol::stream: return method->open_stream != nullptr && !by_query_head();
    case Protocol::retrieval: return method->open_reads != nullptr && !by_query_head();
  }
  return false;
}

Index Variant::job_bytes(const LayerFacts& layer, std::optional<double> budget) const {
  constexpr double kOwnHead = 2;  // store=query-head: the head of one query head
  const auto most = static_cast<Index>((method->joint != '@' && budget ? *budget : 1.0) *
                                       static_cast<double>(layer.n));
  double copies = by_query_head() ? kOwnHead : 0.0;
  Index matrices = 0;
  for (const Use& use : uses()) {
    const MethodInfo& info = use.method->info;
    copies += info.copies;
    if (info.matrix_bytes != nullptr) {
      const Params& own = use.params;
      const bool fixed = own.values().contains("tokens") && !own.is_auto("tokens");
      const Index kept = fixed ? std::min(layer.n, own.integer("tokens")) : most;
      matrices += info.matrix_bytes(own, layer, kept);
    }
  }
  return static_cast<Index>(copies * static_cast<double>(4 * layer.n * (layer.d + layer.dv))) +
         matrices;
}

bool Variant::sized() const {
  const std::vector<std::string>& sizes = method->info.sizes;
  return (sizes.empty() && !method->info.must_fit) ||
         std::ranges::any_of(sizes, [&](const std::string& s) { return !params.is_auto(s); });
}

void Variant::check() {
  known = std::make_shared<const JobFacts>(merged_facts());
  if (known->scope != Scope::head && by_query_head()) {
    throw InputError(fmt::format(
        "{}: parameter {}: got query-head, expected kv-head: its heads share one budget", name(),
        kStoreParam));
  }
}

}  // namespace kvbench
