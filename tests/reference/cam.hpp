// CaM under prefill as a stream over the middle, every step from its definition: softmax over sinks
// and what is held, sums, the lightest goes, one draw, its value is shared out.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "reference/kvreviver.hpp"
#include "reference/merging.hpp"

namespace reference {

struct CamReference {
  const kvbench::KvHead* head = nullptr;
  std::vector<Index> tokens;
  std::vector<bool> attends;  ///< by position: its query is there and may score
  Index sink = 0;
  Index kept = 0, heavy = 0, merge = 32;
  char reduce = 'm';  ///< m: mean, x: max, s: sum
  Element element;
  std::vector<double> draw;  ///< by position

  std::map<Index, Merged> held;  ///< after run(): what is left
  Index merged = 0;              ///< draws that succeeded

  void run();

 private:
  std::map<Index, Real> weights(Index j) const;
  void evict();
  std::map<Index, float> score_;
};

// What each held token receives from the queries at j; sinks take their part of the softmax.
inline std::map<Index, Real> CamReference::weights(Index j) const {
  const Rows k = rows_of(head->k);
  std::map<Index, Real> out;
  for (const kvbench::Matrix& queries : head->q) {
    const Vec q = rows_of(queries)[j - (head->n() - head->nq())];
    const auto e = [&](Index i) { return std::exp(static_cast<Real>(head->scale) * dot(k[i], q)); };
    Real sum = 0;
    for (Index i = 0; i < sink; ++i) {
      sum += e(i);
    }
    for (const auto& [token, m] : held) {
      sum += e(token);
    }
    for (const auto& [token, m] : held) {
      const Real p = e(token) / sum;
      out[token] = reduce == 'x' ? std::max(out[token], p) : out[token] + p;
    }
  }
  for (auto& [token, p] : out) {
    p /= reduce == 'm' ? static_cast<Real>(head->q.size()) : 1;
  }
  return out;
}

inline void CamReference::evict() {
  std::vector<Index> order;
  for (const auto& [token, m] : held) {
    order.push_back(token);
  }
  Index gone = order[0];
  for (std::size_t i = 0; i < order.size() - static_cast<std::size_t>(kept - heavy); ++i) {
    gone = score_[order[i]] <= score_[gone] ? order[i] : gone;
  }
  std::vector<Index> next;
  Real sum = 0;
  for (const Index i : order) {
    if (i > gone && static_cast<Index>(next.size()) < merge) {
      next.push_back(i);
      sum += static_cast<Real>(score_[i]);
    }
  }
  if (!next.empty()) {
    const auto count = static_cast<Real>(next.size());
    const auto own = static_cast<Real>(score_[gone]);
    const Real p = sum > 0 ? std::min<Real>(1, own / (sum / count)) : (own > 0 ? 1 : 0);
    if (static_cast<Real>(draw[gone]) < p) {
      ++merged;
      for (const Index i : next) {
        for (std::size_t t = 0; t < held[i].v.size(); ++t) {
          held[i].v[t] = round_element(held[i].v[t] + held[gone].v[t] / count, element);
        }
        held[i].changed = true;
      }
    }
  }
  held.erase(gone);
  score_.erase(gone);
}

inline void CamReference::run() {
  for (const Index j : tokens) {
    const auto at = static_cast<std::size_t>(j);
    held[j] = {rows_of(head->k)[at], rows_of(head->v)[at], 1, false};
    score_[j] = 0;
    if (attends[at]) {
      for (const auto& [token, p] : weights(j)) {
        score_[token] = static_cast<float>(static_cast<Real>(score_[token]) + p);
      }
    }
    if (static_cast<Index>(held.size()) > kept) {
      evict();
    }
  }
}

}  // namespace reference
