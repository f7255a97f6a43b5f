// KVReviver's one Compress of all tokens, from its definition: sort by score, sum in long double,
// round once, rebuild.
#pragma once

#include "reference/kvreviver.hpp"

namespace reference {

struct BatchReference {
  const kvbench::KvHead* head = nullptr;
  std::vector<Index> tokens;
  Vec scores;  ///< one per token
  ReviverSizes sizes;
  Element element;
  Real largest = 0;  ///< finite element
  std::vector<std::uint64_t> words;
  bool mean = false;  ///< the cells' mean

  std::vector<Index> exact;  ///< ascending
  std::vector<Index> vague;  ///< ascending
  Index overflows = 0;

  /// Which tokens stay.
  void choose();
  /// Estimated keys and values of the vague ones, in their order.
  Rows rebuilt_keys();
  Rows rebuilt_values();
  /// The mean of their keys or values.
  Vec mean_of(kvbench::MatrixView m) const;

 private:
  ReviverReference filled();
};

/// Default shares (45, 45, 10 hundredths) of `budget` bytes without a sketch; `mean`: one token and
/// its count come first out of Vague's.
inline ReviverSizes plain_sizes(Index budget, Index pair_bytes, bool mean) {
  ReviverSizes s;
  s.slack = s.rows = s.cells = 0;
  s.recent = 45 * budget / 100 / pair_bytes;
  s.candidates = (55 * budget / 100 - (mean ? pair_bytes + 4 : 0)) / pair_bytes;
  return s;
}

inline void BatchReference::choose() {
  const std::size_t older = tokens.size() - static_cast<std::size_t>(sizes.recent);
  std::vector<std::pair<Real, Index>> ranked;
  for (std::size_t i = 0; i < older; ++i) {
    ranked.emplace_back(-scores[i], tokens[i]);
  }
  std::sort(ranked.begin(), ranked.end());
  for (std::size_t i = 0; i < older; ++i) {
    (static_cast<Index>(i) < sizes.candidates ? exact : vague).push_back(ranked[i].second);
  }
  exact.insert(exact.end(), tokens.begin() + static_cast<std::ptrdiff_t>(older), tokens.end());
  std::sort(exact.begin(), exact.end());
  std::sort(vague.begin(), vague.end());
}

inline ReviverReference BatchReference::filled() {
  ReviverReference t;
  t.head = head;
  t.sizes = sizes;
  t.element = {64, -16445};  // long double itself: nothing is rounded while adding
  t.words = words;
  t.mean = mean;
  t.start();
  for (const Index i : vague) {
    const auto& token = t.tokens[i];
    t.put(i, token.k, token.v, 1);
  }
  overflows = 0;
  for (auto& row : t.cells) {
    for (auto& cell : row) {
      for (Vec* x : {&cell.k, &cell.v}) {
        for (Real& e : *x) {
          overflows += e > largest || e < -largest ? 1 : 0;
          e = round_element(std::clamp(e, -largest, largest), element);
        }
      }
    }
  }
  t.element = element;
  return t;
}

inline Rows BatchReference::rebuilt_keys() {
  const ReviverReference t = filled();
  Rows out;
  for (const Index i : vague) {
    out.push_back(t.rebuilt(i, false));
  }
  return out;
}

inline Rows BatchReference::rebuilt_values() {
  const ReviverReference t = filled();
  Rows out;
  for (const Index i : vague) {
    out.push_back(t.rebuilt(i, true));
  }
  return out;
}

inline Vec BatchReference::mean_of(kvbench::MatrixView m) const {
  const Rows rows = rows_of(m);
  Vec out(rows[0].size(), 0);
  for (const Index i : vague) {
    for (std::size_t t = 0; t < out.size(); ++t) {
      out[t] += rows[i][t];
    }
  }
  for (Real& x : out) {
    x = round_element(x / static_cast<Real>(vague.size()), element);
  }
  return out;
}

}  // namespace reference
