#include "algorithms/shared/revive_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace kvbench {
namespace {

// Bytes of a share, rounded down; a product that is whole up to rounding is that number.
Index share_of(double ratio, Index bytes) {
  const double x = ratio * static_cast<double>(bytes);
  const double nearest = std::round(x);
  return static_cast<Index>(std::fabs(x - nearest) <= 1e-9 * nearest ? nearest : std::floor(x));
}

// A share of the remaining bytes that must hold `bytes`.
struct Demand {
  double ratio;
  Index bytes;

  bool met(Index left) const { return left >= 0 && share_of(ratio, left) >= bytes; }
  // The least remaining bytes that meet the demand, at most `largest`.
  Index smallest(Index largest) const {
    const double guess = static_cast<double>(bytes) / ratio;
    if (!(guess < static_cast<double>(largest))) {
      return largest;
    }
    // Start below, by more than the rounding in share_of.
    auto left = std::max<Index>(0, static_cast<Index>(guess * (1.0 - 1e-8)) - 2);
    while (left < largest && !met(left)) {
      ++left;
    }
    return left;
  }
};

// `fixed` bytes, described by `what`, are spent before the shares.
RevivePlan plan_shares(const ReviveOptions& o, SketchShape shape, Index tokens, Index fixed,
                       Index budget, const std::string& what) {
  const Index pair = (shape.d + shape.dv) * bytes_per_element(shape.dtype);
  const bool sketch = o.vague == Vague::sketch;
  shape.cells = 1;  // without the hash words
  const Index cell = shape.payload_bytes() + shape.aux_bytes() - 32 * shape.rows;
  const Index each = pair + (sketch ? kRevivePlaceBytes : 0);
  // Candidate gets the rest of Vague's share if there is no sketch.
  const Index vague = o.vague == Vague::mean ? pair + kReviveCountBytes : 0;
  const double candidate_ratio = o.candidate_ratio + (sketch ? 0.0 : o.vague_ratio);

  std::vector<Demand> demands = {{o.vague_ratio, sketch ? cell : vague}};
  if (o.recent_ratio > 0.0) {
    demands.push_back({o.recent_ratio, pair});
  }
  if (o.candidate_ratio > 0.0) {
    demands.push_back({candidate_ratio, vague + each});
  }
  const Index left = budget - fixed;
  const Index all = tokens * pair;
  Index needed = fixed;
  bool met = true;
  for (const Demand& d : demands) {
    met = met && d.met(left);
    needed = std::max(needed, std::min(all, fixed + d.smallest(all)));
  }
  needed = std::min(needed, all);
  if (!met) {
    throw Infeasible(fmt::format("kvreviver: needs {} bytes ({}), budget {}", needed, what, budget),
                     needed);
  }
  RevivePlan plan;
  plan.recent = std::min(tokens, share_of(o.recent_ratio, left) / pair);
  const Index unspent = left - plan.recent * pair;  // shares may round up
  plan.candidates =
      std::min(tokens, (std::min(unspent, share_of(candidate_ratio, left)) - vague) / each);
  const Index rest = unspent - plan.candidates * each;
  shape.cells = sketch ? std::min(tokens, std::min(rest, share_of(o.vague_ratio, left)) / cell) : 0;
  plan.sketch = shape;
  return plan;
}

}  // namespace

void check_ratios(const ReviveOptions& o) {
  constexpr double kSumSlop = 1e-9;  // 0.45 + 0.45 + 0.1 may exceed 1 by rounding
  const double sum = o.recent_ratio + o.candidate_ratio + o.vague_ratio;
  if (!(sum <= 1.0 + kSumSlop)) {
    throw InputError(fmt::format(
        "kvreviver: recent_ratio + candidate_ratio + vague_ratio must be at most 1, got {}", sum));
  }
}

RevivePlan plan_revive(const ReviveOptions& o, SketchShape shape, Index tokens,
                       std::optional<Index> scored, Index budget) {
  check_ratios(o);
  const Index pair = (shape.d + shape.dv) * bytes_per_element(shape.dtype);
  if (tokens <= budget / pair) {
    RevivePlan plan;
    plan.all_exact = true;
    plan.sketch = shape;
    plan.sketch.cells = 0;
    return plan;
  }
  std::string what = "one token for each of Recent and Candidate that has a share";
  Index fixed = 0;
  if (scored) {
    what = fmt::format("{} accumulated scores, slack {} tokens, {}", *scored, o.slack, what);
    fixed = *scored * kReviveScoreBytes + o.slack * pair;
  }
  if (o.vague == Vague::sketch) {
    what += fmt::format(", one sketch cell in each of {} rows", shape.rows);
    fixed += 32 * shape.rows;
  } else if (o.vague == Vague::mean) {
    what += ", one mean token";
  }
  RevivePlan plan = plan_shares(o, shape, tokens, fixed, budget, what);
  plan.slack = scored ? o.slack : 0;
  plan.counts_scores = scored.value_or(0) > 0;
  return plan;
}

}  // namespace kvbench
