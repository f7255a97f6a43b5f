// H2O's greedy eviction, and CaM's merging of what is evicted, as a stream, every step from its
// definition: softmax over what is held, sums, the lightest goes, one draw, its value is shared
// out.
#pragma once

#include "reference/kvreviver.hpp"
#include "reference/merging.hpp"
#include "reference/selection.hpp"

namespace reference {

/// [group][held]: softmax weights of the query at position j over `held` and sinks [0, sink).
inline Rows weights_within(const kvbench::KvHead& head, Index j, const std::vector<Index>& held,
                           Index sink) {
  const Rows k = rows_of(head.k);
  Rows out;
  for (const kvbench::Matrix& queries : head.q) {
    const Vec q = rows_of(queries)[j - head.q_start()];
    const auto e = [&](Index i) { return std::exp(static_cast<Real>(head.scale) * dot(k[i], q)); };
    Real sum = 0;
    for (Index i = 0; i < sink && i <= j; ++i) {
      sum += e(i);
    }
    Vec& own = out.emplace_back();
    for (const Index i : held) {
      own.push_back(e(i));
      sum += own.back();
    }
    for (Real& x : own) {
      x /= sum;
    }
  }
  return out;
}

struct EvictionReference {
  Index kept = 0;    ///< tokens outside the window at most
  Index heavy = 0;   ///< of which heavy hitters
  Index window = 0;  ///< most recent tokens that are never evicted
  Index sink = 0;    ///< first tokens: attended from their arrival on, and nothing else
  ReferenceReduce reduce = ReferenceReduce::mean;
  Index merge = 0;           ///< tokens that an evicted one's value is shared out to; 0: to none
  std::vector<double> draw;  ///< by position, for merging
  Element element;           ///< of merged values

  std::map<Index, float> score;  ///< of every token held, the window's too; sinks have none
  std::map<Index, Merged> held;
  Index merged = 0;  ///< draws that succeeded

  /// Position j arrives; `attends`: its query scores.
  void step(const kvbench::KvHead& head, Index j, bool attends = true);
  /// Tokens held outside the window, given that j came last.
  std::vector<Index> outside(Index j) const;

 private:
  void share_out(Index gone, const std::vector<Index>& others);
};

inline std::vector<Index> EvictionReference::outside(Index j) const {
  std::vector<Index> out;
  for (const auto& [token, s] : score) {
    if (token <= j - window) {
      out.push_back(token);
    }
  }
  return out;
}

inline void EvictionReference::share_out(Index gone, const std::vector<Index>& others) {
  std::vector<Index> next;
  Real sum = 0;
  for (const Index i : others) {
    if (i > gone && static_cast<Index>(next.size()) < merge) {
      next.push_back(i);
      sum += static_cast<Real>(score[i]);
    }
  }
  const auto count = static_cast<Real>(next.size());
  const auto own = static_cast<Real>(score[gone]);
  const Real p = sum > 0 ? std::min<Real>(1, own / (sum / count)) : (own > 0 ? 1 : 0);
  if (next.empty() || static_cast<Real>(draw[gone]) >= p) {
    return;
  }
  ++merged;
  for (const Index i : next) {
    for (std::size_t t = 0; t < held[i].v.size(); ++t) {
      held[i].v[t] = round_element(held[i].v[t] + held[gone].v[t] / count, element);
    }
    held[i].changed = true;
  }
}

inline void EvictionReference::step(const kvbench::KvHead& head, Index j, bool attends) {
  if (j >= sink) {
    score[j] = 0;
    held[j] = {rows_of(head.k)[j], rows_of(head.v)[j], 1, false};
  }
  std::vector<Index> all;
  for (const auto& [token, s] : score) {
    all.push_back(token);
  }
  if (attends) {
    const Vec weight = reduced(weights_within(head, j, all, sink), reduce);
    for (std::size_t i = 0; i < all.size(); ++i) {
      score[all[i]] = static_cast<float>(static_cast<Real>(score[all[i]]) + weight[i]);
    }
  }
  const std::vector<Index> old = outside(j);
  if (static_cast<Index>(old.size()) > kept) {
    Index gone = old[0];
    for (auto i = old.begin(); i != old.end() - (kept - heavy); ++i) {
      gone = score[*i] <= score[gone] ? *i : gone;
    }
    share_out(gone, old);
    score.erase(gone);
    held.erase(gone);
  }
}

}  // namespace reference
