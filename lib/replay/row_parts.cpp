#include "replay/row_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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
  row.protocol = o.protocol;
  row.sink = o.sink;
  row.recent = o.recent;
  row.scores = !variant.declared_scores.empty() ? variant.declared_scores
               : variant.sees_queries()         ? o.scores
                                                : "none";
  row.device = o.device;
  row.seed = entry.seed;
  row.n_tokens = layer.n;
  row.n_queries = windows_of(o, layer.n, layer.nq).queries;
  row.budget_requested = entry.budget;
  row.full_bytes =
      layer.n * (layer.d + layer.dv) * bytes_per_element(plan.readers[unit.trace].meta().dtype);
  if (const auto queries = scoring_queries(plan, unit, variant)) {
    row.scoring_queries = queries->had;
  } else if (variant.sees_evaluated()) {
    row.scoring_queries = row.n_queries;
  }
  return row;
}

std::string unfair(const HeadInput& c, const Entry& entry, bool empty_middle) {
  if (empty_middle) {
    return "empty middle";
  }
  const auto queries = scoring_queries(c.plan(), c.unit(), c.plan().variant_of(c.unit(), entry));
  return queries && queries->none ? "no scoring queries" : "";
}

void fill(Row& row, const MemoryFigures& f) {
  row.tokens_kept = f.tokens_kept;
  row.bytes = f.bytes;
  row.full_bytes = f.full_bytes;
  row.ratio = f.ratio;
  row.middle_ratio = f.middle_ratio;
  row.aux_bytes = f.aux_bytes;
  row.transient_bytes = f.transient_bytes;
}

void fill(Row& row, const ErrorFigures& f) {
  row.rel_error = f.rel_error;
  row.rel_error_mean = f.rel_error_mean;
  row.rel_error_p50 = f.rel_error_p50;
  row.rel_error_p95 = f.rel_error_p95;
  row.rel_error_max = f.rel_error_max;
  row.eps_fro = f.eps_fro;
  row.eps_op = f.eps_op;
  row.log_z_error = f.log_z_error;
  row.cosine = f.cosine;
}

void fill(Row& row, const HeldFigures& f) {
  row.mass_kept = f.mass_kept;
  row.amnesia_count = f.amnesia_count;
  row.amnesia_mass = f.amnesia_mass;
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

std::string status_of_error(const std::exception& error) {
  const bool infeasible = dynamic_cast<const Infeasible*>(&error) != nullptr;
  return fmt::format("{}: {}", infeasible ? "infeasible" : "failed", one_line(error.what()));
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

std::vector<SumPiece> pieces_of(const KvHead& head, const Compressed& c,
                                std::span<const Index> first) {
  std::vector<SumPiece> out;
  const auto add = [&](const HeldTokens& held, const MadeTokens& made, Part part) {
    const auto count = static_cast<std::size_t>(made.k.rows());
    out.push_back({head.k, head.v, held.tokens, held.weights, held.common, part, {}});
    out.push_back({made.k, made.v, first.first(count), made.weights, 1.0F, part, {}});
  };
  add(c.held, c.made, c.denominator ? Part::numerator : Part::both);
  if (c.denominator) {
    add(c.denominator->held, c.denominator->made, Part::denominator);
  }
  return out;
}

void add_compressed(SoftmaxSums& sums, const KvHead& head, const Compressed& c) {
  const Index made =
      std::max(c.made.k.rows(), c.denominator ? c.denominator->made.k.rows() : Index{0});
  std::vector<Index> first(static_cast<std::size_t>(made));
  std::iota(first.begin(), first.end(), Index{0});
  for (const SumPiece& p : pieces_of(head, c, first)) {
    sums.add_rows(p.keys, p.values, p.rows, p.weights, p.common, p.part);
  }
}

}  // namespace kvbench
