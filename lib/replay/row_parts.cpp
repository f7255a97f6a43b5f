#include "replay/row_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <system_error>
#include <vector>

#include "core/error.hpp"
#include "replay/side_tables.hpp"

namespace kvbench {
namespace {

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

JobResult blank_result(const HeadInput& c, const Entry& entry) {
  JobResult out;
  for (const Index q_head : c.unit().q_heads) {
    out.rows.push_back(blank_row(c.plan(), c.unit(), entry, q_head));
  }
  return out;
}

// `reason`: another one to call a measured row degenerate, or "".
std::string status_of(const ErrorFigures& errors, const std::vector<double>& log_denominator,
                      const std::string& reason) {
  const auto degenerate =
      std::ranges::count_if(log_denominator, [](double x) { return !std::isfinite(x); });
  if (degenerate > 0) {
    return fmt::format("degenerate: denominator is 0 or not finite for {} of {} queries",
                       degenerate, log_denominator.size());
  }
  if (errors.infinite > 0) {
    return fmt::format(
        "degenerate: exact output is 0 and the estimate is not, for {} of {} queries",
        errors.infinite, log_denominator.size());
  }
  return reason.empty() ? "ok" : "degenerate: " + one_line(reason);
}

// Outputs of one query head, both [m, dv].
void add_layer_part(const HeadInput& c, Index q_head, const MatrixD& exact, const MatrixD& estimate,
                    LayerPart& part) {
  const Index m = exact.rows();
  const Index dv = exact.cols();
  const Index group = c.head().group();
  if (part.exact.rows() == 0) {
    part = {Matrix(m, group * dv), Matrix(m, group * dv)};
  }
  const Index first = (q_head - c.id().kv_head * group) * dv;
  for (Index j = 0; j < m; ++j) {
    for (Index t = 0; t < dv; ++t) {
      const double a = exact.row(j)[t];
      part.exact.row(j)[first + t] = static_cast<float>(a);
      part.differences.row(j)[first + t] = static_cast<float>(estimate.row(j)[t] - a);
    }
  }
}

}  // namespace

JobResult run_guarded(const HeadInput& c, const Entry& entry,
                      const std::function<void(JobResult&)>& measure) {
  JobResult out = blank_result(c, entry);
  try {
    if (const std::string* why = c.plan().lacks(c.unit(), entry.variant)) {
      throw Infeasible(*why, 0);
    }
    measure(out);
    return out;
  } catch (const IoError&) {
    throw;  // the device failed, not the method
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(c.plan().variant_of(c.unit(), entry).name() + ": out of memory");
  } catch (const std::system_error& e) {  // no thread or no file, also not the method's fault
    throw IoError(fmt::format("{}: {}", c.plan().variant_of(c.unit(), entry).name(), e.what()));
  } catch (const std::exception& e) {
    const bool infeasible = dynamic_cast<const Infeasible*>(&e) != nullptr;
    JobResult blank = blank_result(c, entry);
    for (std::size_t i = 0; i < blank.rows.size(); ++i) {
      blank.rows[i].scoring_queries = out.rows[i].scoring_queries;
      blank.rows[i].status =
          fmt::format("{}: {}", infeasible ? "infeasible" : "failed", one_line(e.what()));
    }
    return blank;
  }
}

JobResult lacking_memory(const HeadInput& c, const Entry& entry) {
  JobResult out = blank_result(c, entry);
  for (Row& row : out.rows) {
    row.status = kLackedMemory;
  }
  return out;
}

std::string degenerate_reason(const HeadInput& c, const Entry& entry, bool empty_middle) {
  if (empty_middle) {
    return "empty middle";
  }
  const auto queries = scoring_queries(c.plan(), c.unit(), c.plan().variant_of(c.unit(), entry));
  return queries && queries->none ? "no scoring queries" : "";
}

std::vector<std::uint8_t> held_flags(const HeadInput& c,
                                     std::initializer_list<std::span<const Index>> tokens) {
  std::vector<std::uint8_t> held(c.head().n(), 0);
  for (const Range exact : {c.windows().sink, c.windows().recent}) {
    std::fill(held.begin() + exact.begin, held.begin() + exact.end, std::uint8_t{1});
  }
  for (const std::span<const Index> list : tokens) {
    for (const Index i : list) {
      held[i] = 1;
    }
  }
  return held;
}

void add_outputs(const HeadInput& c, const ExactAttention& truth, const ValueNorms& norms,
                 const MatrixD& z, const std::vector<double>& log_denominator,
                 const std::string& reason, Row& row, JobResult& out) {
  const ErrorFigures errors = error_figures(truth, norms, z, log_denominator);
  fill(row, errors);
  row.status = status_of(errors, log_denominator, reason);
  std::vector<double>& by_query = out.query_errors.emplace_back();
  const auto width = static_cast<std::size_t>(z.cols());
  for (Index j = 0; j < z.rows(); ++j) {
    by_query.push_back(query_error({truth.output.row(j), width}, {z.row(j), width}));
  }
  if (c.plan().makes_layer_error(c.unit())) {
    add_layer_part(c, row.q_head, truth.output, z, out.layer);
  }
}

std::string diag_text(const HeadInput& c, const Entry& entry, Figures diag) {
  const auto queries = scoring_queries(c.plan(), c.unit(), c.plan().variant_of(c.unit(), entry));
  if (queries && queries->fewer) {
    diag.emplace_back("scoring_queries_asked", fmt::format("{}", queries->asked));
  }
  std::string out;
  for (const auto& [key, value] : diag) {
    out += fmt::format("{}{}={}", out.empty() ? "" : ";", key, value);
  }
  return out;
}

}  // namespace kvbench
