#include "replay/windows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"

namespace kvbench {
namespace {

// Each j < n with j >= last or (j + 1) divisible by --eval-every.
std::vector<Index> steps_until(Index last, const ReplayOptions& o, Index n) {
  const Index every = o.eval_every > 0 ? o.eval_every : std::max<Index>(1, n / 64);
  std::vector<Index> out;
  for (Index j = 0; j < n; ++j) {
    if (j >= last || (j + 1) % every == 0) {
      out.push_back(j);
    }
  }
  return out;
}

}  // namespace

Windows windows_of(const ReplayOptions& o, Index n, Index nq, Index window) {
  Windows w;
  w.queries = std::min(o.queries, nq);
  const Index first = window > 0 ? std::max<Index>(0, n - w.queries - window + 1) : 0;
  const Index sink = std::max(std::min(o.sink, n), first);
  const Index recent = std::max(sink, n - o.recent);
  w.sink = {std::min(first, sink), sink};
  w.middle = {sink, recent};
  w.recent = {recent, n};
  w.scoring = {n - nq, o.scores == Scores::all ? n : std::max(n - nq, n - w.queries)};
  return w;
}

std::vector<Index> positions_of(Range range) {
  std::vector<Index> out(range.size());
  std::iota(out.begin(), out.end(), range.begin);
  return out;
}

std::vector<Index> stream_steps(const ReplayOptions& o, Index n) {
  return steps_until(n - std::min(o.queries, n), o, n);
}

std::vector<Index> kept_steps(const ReplayOptions& o, Index n) {
  return o.protocol == Protocol::stream ? steps_until(n - 1, o, n) : std::vector<Index>{n - 1};
}

std::vector<Range> query_bins(Index queries) {
  constexpr Index kWidest = 32;
  std::vector<Range> out;
  for (Index first = 0; first < queries; first = out.back().end) {
    out.push_back({first, std::min(first + std::clamp<Index>(first, 1, kWidest), queries)});
  }
  return out;
}

Index budget_bytes(double rho, Index full) {
  // 0.29 * 100 is 28.999999999999996 in double.
  const double bytes = rho * static_cast<double>(full);
  const double nearest = std::round(bytes);
  const bool whole = std::abs(bytes - nearest) <= 4e-16 * static_cast<double>(full);
  return static_cast<Index>(whole ? nearest : std::floor(bytes));
}

Index middle_budget(const ReplayOptions& o, double rho, const Windows& w, Index pair_bytes) {
  if (!o.total_budget) {
    return budget_bytes(rho, w.middle.size() * pair_bytes);
  }
  const Index exact = (w.seen() - w.middle.size()) * pair_bytes;
  const Index all = budget_bytes(rho, w.seen() * pair_bytes);
  if (all < exact) {
    throw Infeasible(
        fmt::format("sinks and recent window need {} bytes, budget {} for all tokens", exact, all),
        0);
  }
  return all - exact;
}

}  // namespace kvbench
