#include "replay/row_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <system_error>
#include <vector>

#include "core/error.hpp"

namespace kvbench {
namespace {

// One line, whatever an exception says.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

}  // namespace

Row blank_row(const Plan& plan, const Unit& unit, const Entry& entry, Index q_head) {
  const ReplayOptions& o = plan.options;
  const LayerMeta& layer = plan.layer_meta(unit);
  const Variant& variant = plan.variant_of(unit, entry);
  Row row;
  row.trace = plan.trace_names[unit.trace];
  row.prompt = plan.prompt_meta(unit).id;
  row.layer = layer.layer;
  row.q_head = q_head;
  row.kv_head = unit.kv_head;
  row.algorithm = variant.name();
  row.params = variant.params.canonical();
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
  const TraceMeta& trace = plan.readers[unit.trace].meta();
  row.full_bytes = windows.seen() * (layer.d + layer.dv) * bytes_per_element(trace.dtype);
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

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

JobResult run_guarded(const HeadInput& c, const Entry& entry,
                      const std::function<void(JobResult&)>& measure) {
  JobResult out;
  for (const Index q_head : c.unit().q_heads) {
    out.rows.push_back(blank_row(c.plan(), c.unit(), entry, q_head));
  }
  JobResult blank = out;
  try {
    measure(out);
    return out;
  } catch (const IoError&) {
    throw;  // the device failed, not the method: every further job would fail too
  } catch (const std::bad_alloc&) {
    throw IoError(fmt::format(
        "not enough memory for {} (prompt {}, layer {}, KV head {}); fewer --threads or a "
        "--memory-limit need less",
        c.plan().variant_of(c.unit(), entry).name(), c.id().prompt, c.id().layer, c.id().kv_head));
  } catch (const std::system_error& e) {  // no thread, no file: the machine's as well
    throw IoError(fmt::format("{}: {}", c.plan().variant_of(c.unit(), entry).name(), e.what()));
  } catch (const std::exception& e) {
    const bool infeasible = dynamic_cast<const Infeasible*>(&e) != nullptr;
    for (std::size_t i = 0; i < blank.rows.size(); ++i) {
      blank.rows[i].scoring_queries = out.rows[i].scoring_queries;
      blank.rows[i].status =
          fmt::format("{}: {}", infeasible ? "infeasible" : "failed", one_line(e.what()));
    }
    return blank;
  }
}

std::string unfair(const HeadInput& c, const Entry& entry, bool empty_middle) {
  if (empty_middle) {
    return "empty middle";
  }
  const auto queries = scoring_queries(c.plan(), c.unit(), c.plan().variant_of(c.unit(), entry));
  return queries && queries->none ? "no scoring queries" : "";
}

std::string status_of(const ErrorFigures& errors, Index degenerate, Index m,
                      const std::string& reason) {
  if (degenerate > 0) {
    return fmt::format("degenerate: denominator is 0 or not finite for {} of {} queries",
                       degenerate, m);
  }
  if (errors.infinite > 0) {
    return fmt::format(
        "degenerate: exact output is 0 and the estimate is not, for {} of {} queries",
        errors.infinite, m);
  }
  return reason.empty() ? "ok" : "degenerate: " + one_line(reason);
}

std::string diag_text(const HeadInput& c, const Entry& entry, const Compressed& result) {
  std::string diag;
  const auto add = [&](const std::string& key, const std::string& value) {
    diag += fmt::format("{}{}={}", diag.empty() ? "" : ";", key, value);
  };
  for (const auto& [key, value] : result.diag) {
    add(key, value);
  }
  const auto queries = scoring_queries(c.plan(), c.unit(), c.plan().variant_of(c.unit(), entry));
  if (queries && queries->fewer) {
    add("scoring_queries_asked", fmt::format("{}", queries->asked));
  }
  return diag;
}

Holding holding_of(const Compressed& c) {
  Holding out;
  out.pairs = static_cast<Index>(c.held.tokens.size());
  out.made_pairs = c.made.k.rows();
  out.quantised = c.quantised;
  if (c.denominator) {
    out.keys_only =
        c.denominator->made.k.rows() +
        (c.denominator->same_keys ? 0 : static_cast<Index>(c.denominator->held.tokens.size()));
  }
  out.aux_bytes = c.aux_bytes;
  out.payload_bytes = c.payload_bytes;
  out.transient_bytes = c.transient_bytes;
  return out;
}

std::vector<WeightedRows> weighted_rows(const KvHead& head, const Compressed& c,
                                        std::span<const Index> first, Index queries) {
  std::vector<WeightedRows> out;
  const auto add = [&](const HeldTokens& held, const MadeTokens& made, Part part) {
    const auto count = static_cast<std::size_t>(made.k.rows());
    out.push_back({head.k, head.v, held.tokens, held.weights, held.common, part, {}, true});
    out.push_back({made.k, made.v, first.first(count), made.weights, 1.0F, part, {}, false});
    out.back().positions = made.positions;
  };
  add(c.held, c.made, c.denominator ? Part::numerator : Part::both);
  if (c.denominator) {
    add(c.denominator->held, c.denominator->made, Part::denominator);
  }
  for (WeightedRows& set : out) {
    if (head.window > 0) {
      set.visible_from = head.n() - queries + 1;
      set.window = head.window;
    }
  }
  return out;
}

void add_compressed(const Backend& backend, SoftmaxSums& sums, const KvHead& head,
                    const Compressed& c) {
  const Index made =
      std::max(c.made.k.rows(), c.denominator ? c.denominator->made.k.rows() : Index{0});
  std::vector<Index> first(made);
  std::iota(first.begin(), first.end(), Index{0});
  const std::vector<WeightedRows> sets = weighted_rows(head, c, first, sums.queries().rows());
  backend.add_rows_to(head, {&sums, 1}, {&sets, 1});
}

}  // namespace kvbench
