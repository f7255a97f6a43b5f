#include "algorithms/revive_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "algorithms/revive_report.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

constexpr Index kLanes = 8;  // tokens side by side in a panel

// logits[g][lane] = <key of lane, queries[g]> for H query heads: one FMA per channel, ascending.
template <Index H>
void panel_products(const float* panel, const double* queries, Index d, double* out, Index stride) {
  double acc[H][kLanes] = {};
  for (Index t = 0; t < d; ++t) {
    double x[kLanes];
#pragma omp simd
    for (Index l = 0; l < kLanes; ++l) {
      x[l] = static_cast<double>(panel[t * kLanes + l]);
    }
    for (Index g = 0; g < H; ++g) {
      const double q = queries[g * d + t];
#pragma omp simd
      for (Index l = 0; l < kLanes; ++l) {
        acc[g][l] = std::fma(q, x[l], acc[g][l]);
      }
    }
  }
  for (Index g = 0; g < H; ++g) {
    for (Index l = 0; l < kLanes; ++l) {
      out[g * stride + l] = acc[g][l];
    }
  }
}

// In place: logits to probabilities.
void softmax(double* row, Index count) {
  double top = row[0];
  for (Index i = 1; i < count; ++i) {
    top = std::max(top, row[i]);
  }
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    row[i] = exp_shared(row[i] - top);
  }
  double z = 0.0;
  for (Index i = 0; i < count; ++i) {
    z += row[i];
  }
  const double inverse = 1.0 / z;
#pragma omp simd
  for (Index i = 0; i < count; ++i) {
    row[i] *= inverse;
  }
}

void insert_sorted(std::vector<Index>& v, Index i) {
  v.insert(std::lower_bound(v.begin(), v.end(), i), i);
}

}  // namespace

ReviveCache::ReviveCache(const KvHead& head, const RevivePlan& plan, const ReviveOptions& options,
                         const RngStream& words)
    : head_(head),
      plan_(plan),
      options_(options),
      sketch_(plan.sketch, words),
      scores_(static_cast<std::size_t>(head.n()), 0.0F),
      rebuilt_(static_cast<std::size_t>(std::max(head.d(), head.dv()))) {}

ReviveRules ReviveCache::rules(std::span<const ReviveStep> steps) const {
  return {steps,
          plan_.recent,
          plan_.slack,
          plan_.candidates,
          options_.replace_rate,
          options_.reduce,
          sketch_.hashes(),
          plan_.sketch.cells,
          plan_.sketch.dtype,
          plan_.sketch.estimate};
}

void ReviveCache::follow(ReviveLog log) {
  follows_ = true;
  moves_ = std::move(log.moves);
  scores_ = std::move(log.scores);
}

void ReviveCache::set_key(Index i, const float* key) {
  float* panel = panels_.data() + (i / kLanes) * head_.d() * kLanes + i % kLanes;
  for (Index t = 0; t < head_.d(); ++t) {
    panel[t * kLanes] = key[t];
  }
}

void ReviveCache::refresh_keys() {
  for (const Index i : vague_) {
    if (sketch_.changed(i)) {
      sketch_.key(i, rebuilt_.data());
      set_key(i, rebuilt_.data());
    }
  }
  sketch_.forget_changes();
}

void ReviveCache::arrive(Index j, bool has_query, bool scored) {
  arrived_ += scored ? 1 : 0;
  if (has_query && !plan_.all_exact && !follows_) {
    attend(j);
  }
}

void ReviveCache::attend(Index j) {
  if (panels_.empty()) {
    const Index panels = (head_.n() + kLanes - 1) / kLanes;
    panels_.assign(static_cast<std::size_t>(panels * head_.d() * kLanes), 0.0F);
    queries_.resize(head_.group(), head_.d());
    logits_.resize(head_.group(), panels * kLanes);
  }
  for (; filled_ <= j; ++filled_) {
    set_key(filled_, head_.k.row(filled_));
  }
  refresh_keys();
  const Index d = head_.d();
  const Index group = head_.group();
  for (Index g = 0; g < group; ++g) {
    const float* q = head_.q[static_cast<std::size_t>(g)].row(j - head_.q_start());
    for (Index t = 0; t < d; ++t) {
      queries_.row(g)[t] = static_cast<double>(q[t]) * head_.scale;
    }
  }
  const Index seen = j + 1;
  const Index stride = logits_.cols();
  for (Index i = 0; i < seen; i += kLanes) {
    const float* panel = panels_.data() + i * d;
    Index g = 0;
    for (; g + 4 <= group; g += 4) {
      panel_products<4>(panel, queries_.row(g), d, logits_.row(g) + i, stride);
    }
    for (; g < group; ++g) {
      panel_products<1>(panel, queries_.row(g), d, logits_.row(g) + i, stride);
    }
  }
  for (Index g = 0; g < group; ++g) {
    softmax(logits_.row(g), seen);
  }
  double* received = logits_.row(0);
  for (Index g = 1; g < group; ++g) {
    const double* p = logits_.row(g);
    for (Index i = 0; i < seen; ++i) {
      received[i] =
          options_.reduce == Reduce::max ? std::max(received[i], p[i]) : received[i] + p[i];
    }
  }
  const double share = options_.reduce == Reduce::mean ? static_cast<double>(group) : 1.0;
  for (Index i = 0; i < seen; ++i) {
    float& score = scores_[static_cast<std::size_t>(i)];
    score = static_cast<float>(static_cast<double>(score) + received[i] / share);
  }
}

void ReviveCache::insert(Index i) {
  recent_.push_back(i);
  if (plan_.all_exact) {
    return;
  }
  const auto size = static_cast<Index>(recent_.size());
  if (size > plan_.recent + plan_.slack) {
    const auto end = recent_.begin() + (size - plan_.recent);
    for (auto it = recent_.begin(); it != end; ++it) {
      insert_sorted(candidates_, *it);
    }
    recent_.erase(recent_.begin(), end);
  }
  if (follows_) {
    move_as_logged(i);
    return;
  }
  while (static_cast<Index>(candidates_.size()) > plan_.candidates) {
    to_vague(candidates_[weakest_candidate()]);
  }
  swap_back();
}

// The lowest score; of equals the highest position, so that the lowest is kept.
std::size_t ReviveCache::weakest_candidate() const {
  std::size_t best = 0;
  for (std::size_t c = 1; c < candidates_.size(); ++c) {
    if (score(candidates_[c]) <= score(candidates_[best])) {
      best = c;
    }
  }
  return best;
}

// The highest score; of equals the lowest position.
std::size_t ReviveCache::strongest_vague() const {
  std::size_t best = 0;
  float top = score(vague_[0]);
  for (std::size_t v = 1; v < vague_.size(); ++v) {
    const float s = score(vague_[v]);
    if (s > top) {
      top = s;
      best = v;
    }
  }
  return best;
}

// Candidate -> Vague.
void ReviveCache::to_vague(Index i) {
  candidates_.erase(std::lower_bound(candidates_.begin(), candidates_.end(), i));
  const auto it = revived_.find(i);
  if (it == revived_.end()) {
    sketch_.add(i, head_.k.row(i), head_.v.row(i));
  } else {
    sketch_.add(i, it->second.k.data(), it->second.v.data());
    revived_.erase(it);
  }
  insert_sorted(vague_, i);
}

void ReviveCache::swap_back() {
  while (!candidates_.empty() && !vague_.empty()) {
    const Index out = candidates_[weakest_candidate()];
    const std::size_t place = strongest_vague();
    const Index in = vague_[place];
    const double least = static_cast<double>(score(out)) * options_.replace_rate;
    if (!(least < static_cast<double>(score(in)))) {
      return;
    }
    swap(out, place);
  }
}

// Vague -> Candidate in the place of `out`.
void ReviveCache::swap(Index out, std::size_t place) {
  const Index in = vague_[place];
  Pair pair{std::vector<float>(static_cast<std::size_t>(head_.d())),
            std::vector<float>(static_cast<std::size_t>(head_.dv()))};
  sketch_.key(in, pair.k.data());
  sketch_.value(in, pair.v.data());
  sketch_.subtract(in, pair.k.data(), pair.v.data());
  vague_.erase(vague_.begin() + static_cast<std::ptrdiff_t>(place));
  to_vague(out);
  insert_sorted(candidates_, in);
  if (!follows_) {
    // A score above 0: it was attended before, so no fill overwrites it.
    set_key(in, pair.k.data());
  }
  revived_.emplace(in, std::move(pair));
  ++swaps_;
}

void ReviveCache::move_as_logged(Index i) {
  for (; next_move_ < moves_.size() && moves_[next_move_].cause == i; ++next_move_) {
    const ReviveMove& move = moves_[next_move_];
    if (move.in < 0) {
      to_vague(move.out);
    } else {
      const auto place = std::lower_bound(vague_.begin(), vague_.end(), move.in);
      swap(move.out, static_cast<std::size_t>(place - vague_.begin()));
    }
  }
}

Compressed ReviveCache::view() const {
  Compressed out;
  if (plan_.all_exact) {
    out.held.tokens = recent_;
    return out;
  }
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
  out.held.tokens.insert(out.held.tokens.end(), recent_.begin(), recent_.end());
  for (const Index i : vague_) {
    sketch_.key(i, out.made.k.row(at));
    sketch_.value(i, out.made.v.row(at));
    ++at;
  }
  const auto pairs = static_cast<Index>(recent_.size() + candidates_.size());
  out.payload_bytes = pairs * head_.pair_bytes() + plan_.sketch.payload_bytes();
  out.aux_bytes = (plan_.counts_scores ? arrived_ * kReviveScoreBytes : 0) +
                  static_cast<Index>(candidates_.size()) * kRevivePlaceBytes +
                  plan_.sketch.aux_bytes();
  out.degenerate = plan_.degenerate();
  out.transient_bytes = vague * head_.pair_bytes();
  report(out);
  return out;
}

// Reconstruction errors of the vague tokens, per element and squared, beside the bounds of [1].
void ReviveCache::report(Compressed& out) const {
  const auto count = static_cast<Index>(vague_.size());
  const ReviveErrors errors =
      revive_errors(head_, vague_, out.made.k, out.made.v, out.made.k.rows() - count);
  out.diag = {{"swaps", fmt::format("{}", swaps_)},
              {"vague", fmt::format("{}", count)},
              {"revived", fmt::format("{}", revived_.size())}};
  const auto figures = sketch_figures(errors, count, plan_.sketch);
  out.diag.insert(out.diag.end(), figures.begin(), figures.end());
  out.diag.emplace_back("overflows", fmt::format("{}", sketch_.overflows()));
}

}  // namespace kvbench
