// What a plan says on the terminal of queries that a trace lacks.
#include <fmt/format.h>

#include <set>

#include "replay/job.hpp"
#include "replay/plan.hpp"

namespace kvbench {

std::optional<Variant::Queries> scoring_queries(const Plan& plan, const Unit& unit,
                                                const Variant& variant) {
  const LayerMeta& l = plan.layer_meta(unit);
  const Windows w = windows_of(plan.options, l.n, l.nq);
  return plan.stream() ? variant.queries({l.n - l.nq, l.n}, {0, l.n})
                       : variant.queries(w.scoring, w.middle);
}

std::vector<std::string> scoring_notes(const Plan& plan) {
  struct Lacking {
    std::set<std::string> algorithms;
    std::set<const Unit*> heads;
  };
  std::map<std::pair<Index, Index>, Lacking> by_queries;  // had, asked
  // All heads of a layer have as many queries: a variant is asked once for each layer.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t>, std::vector<const Unit*>> layers;
  for (const Unit& unit : plan.units) {
    layers[{unit.trace, unit.prompt, unit.layer}].push_back(&unit);
  }
  for (const auto& [where, units] : layers) {
    for (std::size_t v = 0; v < plan.variants.size(); ++v) {
      const Variant& variant = plan.variant_of(*units.front(), {v, std::nullopt, 0});
      const auto queries = scoring_queries(plan, *units.front(), variant);
      if (queries && queries->fewer) {
        Lacking& one = by_queries[{queries->had, queries->asked}];
        one.algorithms.insert(variant.name());
        one.heads.insert(units.begin(), units.end());
      }
    }
  }
  std::vector<std::string> out;
  for (const auto& [counts, one] : by_queries) {
    out.push_back(fmt::format(
        "note: {} of the {} queries that {} would score with are in the trace ({} KV heads){}",
        counts.first, counts.second, fmt::join(one.algorithms, ", "), one.heads.size(),
        counts.first == 0 ? "; these rows are degenerate" : ""));
  }
  return out;
}

}  // namespace kvbench
