// The plan's layers: which of them OUT.layers.csv has lines of, and shards that cut none of those.
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "replay/layer_errors.hpp"
#include "replay/plan.hpp"

namespace kvbench {
namespace {

const Unit& first_of(const Plan& plan, Range units) {
  return plan.units[static_cast<std::size_t>(units.begin)];
}

// Query heads of the layer that are replayed.
Index replayed(const Plan& plan, Range units) {
  Index out = 0;
  for (Index u = units.begin; u < units.end; ++u) {
    out += static_cast<Index>(plan.units[static_cast<std::size_t>(u)].q_heads.size());
  }
  return out;
}

}  // namespace

bool same_layer(const Unit& a, const Unit& b) {
  return a.trace == b.trace && a.prompt == b.prompt && a.layer == b.layer;
}

bool Plan::makes_layer_error(const Unit& unit) const {
  return error_layers.count({unit.trace, unit.prompt, unit.layer}) > 0;
}

Range Plan::layer_units(Index unit) const {
  const auto alike = [&](Index other) {
    return same_layer(units[static_cast<std::size_t>(other)],
                      units[static_cast<std::size_t>(unit)]);
  };
  Range out{unit, unit + 1};
  while (out.begin > 0 && alike(out.begin - 1)) {
    --out.begin;
  }
  while (out.end < static_cast<Index>(units.size()) && alike(out.end)) {
    ++out.end;
  }
  return out;
}

std::vector<Range> Plan::layers() const {
  std::vector<Range> out;
  for (Index u = 0; u < static_cast<Index>(units.size()); u = out.back().end) {
    out.push_back(layer_units(u));
  }
  return out;
}

Range Plan::shard_jobs() const {
  const auto boundary = [&](Index i) {
    const Index job = jobs() * i / options.shard_count;
    if (job == jobs() || !makes_layer_error(unit_of(job))) {
      return job;
    }
    const auto per_unit = static_cast<Index>(entries.size());
    const Range layer = layer_units(job / per_unit);
    const Range whole{layer.begin * per_unit, layer.end * per_unit};
    return job - whole.begin < whole.end - job ? whole.begin : whole.end;
  };
  return {boundary(options.shard_index - 1), boundary(options.shard_index)};
}

void plan_layer_errors(Plan& plan) {
  std::vector<std::string> notes;
  const auto leave_out = [&](const Unit& unit, std::string_view why) {
    notes.push_back(fmt::format("note: OUT.layers.csv leaves out {}: prompt {} layer {}: {}",
                                plan.trace_names[unit.trace], plan.prompt_meta(unit).id,
                                plan.layer_meta(unit).layer, why));
  };
  bool projections = false;
  Index partly = 0;
  for (const Range units : plan.layers()) {
    const Unit& unit = first_of(plan, units);
    const LayerMeta& layer = plan.layer_meta(unit);
    projections = projections || layer.hidden > 0;
    if (layer.hidden == 0) {
      leave_out(unit, "the trace has no output projection (o_proj)");
    } else if (replayed(plan, units) < layer.q_heads) {
      ++partly;  // --heads is the same for all layers
    } else {
      plan.error_layers.insert({unit.trace, unit.prompt, unit.layer});
    }
  }
  if (!projections) {
    return;  // nobody can expect the table
  }
  if (partly > 0) {
    plan.left_out.push_back(
        plan.error_layers.empty()
            ? "note: OUT.layers.csv is not written: --heads leaves out some of the query heads of "
              "every layer"
            : fmt::format("note: OUT.layers.csv leaves out {} layers of which --heads leaves out "
                          "some query heads",
                          partly));
  }
  if (!plan.error_layers.empty()) {
    plan.left_out.insert(plan.left_out.end(), notes.begin(), notes.end());
  }
}

nlohmann::json layers_without_error(const Plan& plan) {
  nlohmann::json out = nlohmann::json::array();
  for (const Range units : plan.layers()) {
    const Unit& unit = first_of(plan, units);
    if (!plan.error_layers.empty() && !plan.makes_layer_error(unit)) {
      out.push_back(
          {plan.trace_names[unit.trace], plan.prompt_meta(unit).id, plan.layer_meta(unit).layer});
    }
  }
  return out;
}

}  // namespace kvbench
