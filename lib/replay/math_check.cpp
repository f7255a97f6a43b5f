#include "replay/math_check.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/parallel.hpp"
#include "replay/job.hpp"
#include "replay/stream_job.hpp"

namespace kvbench {
namespace {

// Both modes' results of every entry.
using Results = std::vector<JobResult>;

template <class Context, class Run>
Results results_of(const Plan& plan, const Unit& unit, const OpenDevice& open,
                   const std::vector<std::size_t>& entries, int threads,
                   const std::atomic<bool>& stop, const Run& run) {
  Results out(entries.size());
  const Context context(plan, unit, threads, open);
  parallel_for(static_cast<Index>(entries.size()), threads, stop, [&](Index i) {
    const auto at = static_cast<std::size_t>(i);
    out[at] = run(context, entries[at]);
  });
  return out;
}

double mean_error(const std::vector<Row>& rows) {
  return std::accumulate(rows.begin(), rows.end(), 0.0,
                         [](double sum, const Row& row) { return sum + row.rel_error; }) /
         static_cast<double>(rows.size());
}

bool measured(const std::string& status) {
  return status.rfind("ok", 0) == 0;
}

void compare(const JobResult& exact, const JobResult& fast, MathCheck& out) {
  out.same_status = exact.rows.size() == fast.rows.size() && !exact.rows.empty() &&
                    std::equal(exact.rows.begin(), exact.rows.end(), fast.rows.begin(),
                               [](const Row& a, const Row& b) { return a.status == b.status; });
  if (!out.same_status || !std::all_of(exact.rows.begin(), exact.rows.end(),
                                       [](const Row& row) { return measured(row.status); })) {
    return;
  }
  if (!exact.kept.empty() && !fast.kept.empty()) {
    const std::vector<Index>& a = exact.kept.back().tokens;
    const std::vector<Index>& b = fast.kept.back().tokens;
    std::vector<Index> lost;
    std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(lost));
    out.tokens = static_cast<Index>(a.size());
    out.differing =
        a.empty() ? 0.0 : static_cast<double>(lost.size()) / static_cast<double>(a.size());
  }
  out.rel_error = mean_error(exact.rows);
  out.difference = mean_error(fast.rows) - out.rel_error;
}

}  // namespace

double MathChecks::most_differing() const {
  double most = 0.0;
  for (const MathCheck& c : entries) {
    most = std::max(most, c.differing);
  }
  return most;
}

double MathChecks::most_difference(double floor) const {
  double most = 0.0;
  for (const MathCheck& c : entries) {
    if (c.rel_error > floor) {
      most = std::max(most, std::abs(c.difference) / c.rel_error);
    }
  }
  return most;
}

MathChecks check_math(const Plan& plan, const Unit& unit, const SharedBudgets& shares, int threads,
                      const std::atomic<bool>& stop) {
  MathChecks out;
  if (!plan.open_device || !plan.open_exact) {
    return out;
  }
  out.trace = plan.trace_names[unit.trace];
  out.prompt = plan.prompt_meta(unit).id;
  out.layer = plan.layer_meta(unit).layer;
  out.kv_head = unit.kv_head;
  std::vector<std::size_t> entries;
  const std::uint64_t first = parse_seeds(plan.options.seeds).front();
  for (std::size_t e = 0; e < plan.entries.size(); ++e) {
    const Entry& entry = plan.entries[e];
    if (!plan.variants[entry.variant].random() || entry.seed == first) {
      entries.push_back(e);
    }
  }
  const auto both = [&](const OpenDevice& open) {
    if (plan.stream()) {
      return results_of<StreamContext>(plan, unit, open, entries, threads, stop,
                                       [&](const StreamContext& c, std::size_t e) {
                                         return run_stream_job(c, plan.entries[e]);
                                       });
    }
    return results_of<HeadContext>(plan, unit, open, entries, threads, stop,
                                   [&](const HeadContext& c, std::size_t e) {
                                     return run_job(c, plan.entries[e], shares.find(unit, e));
                                   });
  };
  const Results exact = both(plan.open_exact);
  const Results fast = both(plan.open_device);
  if (stop) {
    return out;
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = plan.entries[entries[i]];
    const Variant& variant = plan.variant_of(unit, entry);
    MathCheck check;
    check.algorithm = variant.name();
    check.params = variant.params.canonical();
    check.budget = entry.budget;
    check.seed = entry.seed;
    compare(exact[i], fast[i], check);
    out.entries.push_back(std::move(check));
  }
  return out;
}

nlohmann::json to_json(const MathChecks& checks) {
  if (checks.entries.empty()) {
    return nullptr;
  }
  nlohmann::json entries = nlohmann::json::array();
  for (const MathCheck& c : checks.entries) {
    entries.push_back({{"algorithm", c.algorithm},
                       {"params", c.params},
                       {"budget", c.budget ? nlohmann::json(*c.budget) : nlohmann::json()},
                       {"seed", c.seed},
                       {"tokens", c.tokens},
                       {"differing_tokens", c.differing},
                       {"rel_error_exact", c.rel_error},
                       {"rel_error_difference", c.difference},
                       {"same_status", c.same_status}});
  }
  return {{"trace", checks.trace},
          {"prompt", checks.prompt},
          {"layer", checks.layer},
          {"kv_head", checks.kv_head},
          {"most_differing_tokens", checks.most_differing()},
          {"most_rel_error_difference", checks.most_difference()},
          {"entries", entries}};
}

}  // namespace kvbench
