#include "replay/blank_row.hpp"

#include "replay/windows.hpp"

namespace kvbench {

Row blank_row(const PlanSpec& plan, const Unit& unit, const Entry& entry, Index q_head) {
  const ReplayOptions& o = plan.options;
  const LayerMeta& layer = plan.layer_meta(unit);
  const Variant& variant = plan.variant_of(unit, entry);
  Row row;
  row.trace = plan.trace_names[unit.trace];
  row.prompt = plan.prompt_meta(unit).id;
  row.layer = layer.layer;
  row.q_head = q_head;
  row.kv_head = unit.kv_head;
  row.algorithm = variant.label();
  row.params = variant.label_params();
  row.protocol = name(o.protocol);
  row.sink = o.sink;
  row.recent = o.recent;
  row.scores = variant.scores_text(o.scores);
  row.device = o.device;
  row.seed = entry.seed;
  row.n_tokens = layer.n;
  const Windows windows = windows_of(o, layer);
  row.n_queries = windows.queries;
  row.budget_requested = entry.budget;
  row.repeats = o.repeat;
  const TraceMeta& trace = plan.trace_meta(unit);
  row.full_bytes = windows.seen() * plan.pair_bytes(unit);
  row.model = trace.model;
  row.dtype = name(trace.dtype);
  row.precision = name(o.precision);
  if (const auto queries = scoring_queries(plan, unit, variant)) {
    row.scoring_queries = queries->had;
  } else if (variant.sees_evaluated()) {
    row.scoring_queries = row.n_queries;
  }
  return row;
}

}  // namespace kvbench
