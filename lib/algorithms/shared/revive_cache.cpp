#include "algorithms/shared/revive_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "algorithms/shared/size.hpp"
#include "attention/merge_rows.hpp"
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
    refuse_budget(needed, budget, "kvreviver: needs", fmt::format(" ({})", what));
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

void add_figure(Compressed& out, const char* name, double x) {
  out.diag.emplace_back(name, fmt::format("{:.6g}", x));
}

// Mean over tokens and elements of (made - exact)^2, or of exact^2 if `made` is null; 0 of no
// tokens. Row first + step * i of `made` stands for tokens[i]. Summed by channel, so that the order
// is fixed.
double mean_square(MatrixView exact, std::span<const Index> tokens, const Matrix* made,
                   Index first = 0, Index step = 1) {
  std::vector<double> sums(exact.cols, 0.0);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const float* x = exact.row(tokens[i]);
    const float* y = made == nullptr ? nullptr : made->row(first + step * static_cast<Index>(i));
    for (std::size_t t = 0; t < sums.size(); ++t) {
      const double e = y == nullptr ? static_cast<double>(x[t])
                                    : static_cast<double>(y[t]) - static_cast<double>(x[t]);
      sums[t] += e * e;
    }
  }
  const double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  return tokens.empty()
             ? 0.0
             : total / (static_cast<double>(tokens.size()) * static_cast<double>(sums.size()));
}

// Rebuilds the tokens `vague`, ascending, in the last rows of out.made, and adds the sketch's
// bytes, the mean squared errors and the bounds of [1].
void add_sketch(Compressed& out, const KvHead& head, const CountSketch& sketch,
                std::span<const Index> vague) {
  const auto count = static_cast<Index>(vague.size());
  const Index first = out.made.k.rows() - count;
  for (Index i = 0; i < count; ++i) {
    sketch.key(vague[i], out.made.k.row(first + i));
    sketch.value(vague[i], out.made.v.row(first + i));
  }
  const SketchShape& shape = sketch.shape();
  const Index cells = shape.rows * shape.cells;
  *out.payload_bytes += shape.payload_bytes();
  out.aux_bytes += shape.aux_bytes();
  out.transient_bytes = count * head.pair_bytes();
  out.degenerate = shape.cells == 1 ? "a sketch of one cell a row" : "";
  const auto bound = [&](MatrixView exact) {
    return sketch_variance_bound(count, cells, mean_square(exact, vague, nullptr));
  };
  out.diag.emplace_back("cells", fmt::format("{}", cells));
  add_figure(out, "k_error", mean_square(head.k, vague, &out.made.k, first));
  add_figure(out, "k_bound", bound(head.k));
  add_figure(out, "v_error", mean_square(head.v, vague, &out.made.v, first));
  add_figure(out, "v_bound", bound(head.v));
  out.diag.emplace_back("overflows", fmt::format("{}", sketch.overflows()));
}

void add_mean(Compressed& out, const Task& task, std::span<const Index> vague) {
  const KvHead& head = task.head;
  RowMerge all;
  all.members.assign(vague.begin(), vague.end());
  all.lists = {{0, static_cast<Index>(vague.size())}};
  out.made.k = merge_rows(head.k, all, head.dtype);
  out.made.v = merge_rows(head.v, all, head.dtype);
  out.made.weights = {static_cast<float>(vague.size())};
  *out.payload_bytes += head.pair_bytes();
  out.aux_bytes = kReviveCountBytes;
  add_figure(out, "k_error", mean_square(head.k, vague, &out.made.k, 0, /*step=*/0));
  add_figure(out, "v_error", mean_square(head.v, vague, &out.made.v, 0, /*step=*/0));
}

void insert_sorted(std::vector<Index>& v, Index i) {
  v.insert(std::lower_bound(v.begin(), v.end(), i), i);
}

void erase_sorted(std::vector<Index>& v, Index i) {
  v.erase(std::lower_bound(v.begin(), v.end(), i));
}

}  // namespace

ReviveCache::ReviveCache(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
                         const RngStream& words, const Backend& backend,
                         std::span<const ReviveStep> steps)
    : head_(head), plan_(plan), sketch_(plan.sketch, words) {
  if (!plan.all_exact) {
    stream_ = backend.revive(
        head, {{plan.recent, plan.slack, plan.candidates, options.replace_rate, options.reduce},
               sketch_.hashes(),
               plan.sketch.cells,
               plan.sketch.dtype,
               plan.sketch.estimate,
               steps});
  }
}

void ReviveCache::step(const ReviveStep& step) {
  arrived_ += step.position >= plan_.sink ? 1 : 0;
  if (step.insert >= 0) {
    insert(step.insert);
  }
  if (stream_ == nullptr) {
    return;
  }
  for (const ReviveMove& move : stream_->step(step)) {
    move.in < 0 ? to_vague(move.out) : swap(move.out, move.in);
  }
}

void ReviveCache::insert(Index i) {
  recent_.push_back(i);
  const auto size = static_cast<Index>(recent_.size());
  if (stream_ != nullptr && size > plan_.recent + plan_.slack) {
    const auto end = recent_.begin() + (size - plan_.recent);
    candidates_.insert(candidates_.end(), recent_.begin(), end);
    recent_.erase(recent_.begin(), end);
  }
}

void ReviveCache::to_vague(Index i) {
  erase_sorted(candidates_, i);
  const auto it = revived_.find(i);
  if (it == revived_.end()) {
    sketch_.add(i, head_.k.row(i), head_.v.row(i));
  } else {
    sketch_.add(i, it->second.k.data(), it->second.v.data());
    revived_.erase(it);
  }
  insert_sorted(vague_, i);
}

void ReviveCache::swap(Index out, Index in) {
  Pair pair{std::vector<float>(head_.d()), std::vector<float>(head_.dv())};
  sketch_.key(in, pair.k.data());
  sketch_.value(in, pair.v.data());
  sketch_.subtract(in, pair.k.data(), pair.v.data());
  erase_sorted(vague_, in);
  to_vague(out);
  insert_sorted(candidates_, in);
  revived_.emplace(in, std::move(pair));
  ++swaps_;
}

Compressed ReviveCache::view() const {
  if (plan_.all_exact) {
    return hold(recent_);
  }
  Compressed out;
  const auto revived = static_cast<Index>(revived_.size());
  const auto vague = static_cast<Index>(vague_.size());
  out.made.k = Matrix(revived + vague, head_.d());
  out.made.v = Matrix(revived + vague, head_.dv());
  Index at = 0;
  for (const Index i : candidates_) {
    const auto it = revived_.find(i);
    if (it == revived_.end()) {
      out.held.tokens.push_back(i);
    } else {
      std::copy(it->second.k.begin(), it->second.k.end(), out.made.k.row(at));
      std::copy(it->second.v.begin(), it->second.v.end(), out.made.v.row(at));
      ++at;
    }
  }
  append_all(out.held.tokens, recent_);
  const auto pairs = static_cast<Index>(recent_.size() + candidates_.size());
  out.payload_bytes = pairs * head_.pair_bytes();
  out.aux_bytes = (plan_.counts_scores ? arrived_ * kReviveScoreBytes : 0) +
                  static_cast<Index>(candidates_.size()) * kRevivePlaceBytes;
  out.diag = {{"swaps", fmt::format("{}", swaps_)},
              {"vague", fmt::format("{}", vague)},
              {"revived", fmt::format("{}", revived)}};
  add_sketch(out, head_, sketch_, vague_);
  return out;
}

Compressed revive_batch(const Task& task, const ReviveOptions& options, const RevivePlan& plan,
                        std::span<const double> scores) {
  // Recent and Candidate hold fewer tokens than the task has: otherwise all would fit.
  const auto older = task.tokens.first(task.count() - plan.recent);
  Compressed out = hold(keep_top(older, scores.first(older.size()), plan.candidates));
  std::vector<Index> vague;
  std::set_difference(older.begin(), older.end(), out.held.tokens.begin(), out.held.tokens.end(),
                      std::back_inserter(vague));
  append_all(out.held.tokens, task.tokens.last(plan.recent));
  out.payload_bytes = (plan.recent + plan.candidates) * task.head.pair_bytes();
  out.diag = {{"vague", fmt::format("{}", vague.size())}};
  if (options.vague == Vague::sketch) {
    CountSketch sketch(plan.sketch, task.rng.stream("sketch"));
    sketch.fill(vague, task.head.k, task.head.v);
    out.made.k = Matrix(static_cast<Index>(vague.size()), task.head.d());
    out.made.v = Matrix(static_cast<Index>(vague.size()), task.head.dv());
    out.aux_bytes = plan.candidates * kRevivePlaceBytes;
    add_sketch(out, task.head, sketch, vague);
  } else if (options.vague == Vague::mean) {
    add_mean(out, task, vague);
  }
  return out;
}

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
