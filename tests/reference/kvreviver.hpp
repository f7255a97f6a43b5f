// KVReviver by its definition: every step rebuilds every vague token from cells that are kept as
// long double and rounded by hand, and attends all of them. Written from the paper's Algorithms 1-4
// and docs/methods.md, not from the fast code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reference/reference.hpp"

namespace reference {

/// An element type by its significand bits and the exponent of its smallest quantum.
struct Element {
  int bits = 24;
  int least = -149;
};

struct ReviverSizes {
  Index recent = 0, slack = 16, candidates = 0, rows = 3, cells = 0;
};

struct ReviverReference {
  const kvbench::KvHead* head = nullptr;
  ReviverSizes sizes;
  Element element;
  std::vector<std::uint64_t> words;
  double replace_rate = 1.1;
  bool mean = false;
  char reduce = 'm';  // m: mean, x: max, s: sum
  Index sink = 0;     // the first tokens, never inserted: attended, without a score

  struct Cell {
    Vec k, v;
    Index count = 0;
  };
  struct Token {
    char place = 'o';  // o: outside, r: recent, c: candidate, v: vague
    float score = 0;
    Vec k, v;  // as it is stored while recent or candidate, and exactly while outside
    bool estimated = false;
  };
  std::vector<Token> tokens;
  std::vector<std::vector<Cell>> cells;
  Index swaps = 0;

  void start();
  void arrive(Index j, bool has_query);
  void insert(Index i);
  std::vector<Index> in(char place) const;
  /// Output of query head g at position j over all of 0 .. j as the cache has them now.
  Vec output(Index g, Index j) const;

  void put(Index i, const Vec& k, const Vec& v, int direction);
  Vec rebuilt(Index i, bool value) const;
  Vec probabilities(Index g, Index j) const;
};

inline std::size_t z(Index i) {
  return static_cast<std::size_t>(i);
}

inline Element element_of(kvbench::DType dtype) {
  return dtype == kvbench::DType::float16    ? Element{11, -24}
         : dtype == kvbench::DType::bfloat16 ? Element{8, -133}
                                             : Element{};
}

inline Real round_element(Real x, Element e) {
  if (x == 0) {
    return 0;
  }
  int exponent = 0;
  std::frexp(x, &exponent);
  const int quantum = std::max(exponent - e.bits, e.least);
  return std::ldexp(std::nearbyint(std::ldexp(x, -quantum)), quantum);
}

/// The documented hash family.
inline Index hash_cell(std::uint64_t a, std::uint64_t b, Index position, Index cells) {
  const long double two32 = 4294967296.0L;
  const std::uint64_t word = a * static_cast<std::uint64_t>(position) + b;  // mod 2^64
  const auto upper = static_cast<long double>(word / 4294967296ULL);
  return static_cast<Index>(std::floor(upper * static_cast<long double>(cells) / two32));
}

inline int hash_sign(std::uint64_t a, std::uint64_t b, Index position) {
  return a * static_cast<std::uint64_t>(position) + b >= 9223372036854775808ULL ? -1 : 1;
}

inline Real median(Vec x) {
  std::sort(x.begin(), x.end());
  const std::size_t half = x.size() / 2;
  return x.size() % 2 == 1 ? x[half] : (x[half - 1] + x[half]) / 2;
}

/// Default shares (45, 45, 10 hundredths) of `budget` bytes by whole-number arithmetic.
inline ReviverSizes reviver_sizes(Index budget, Index scored, Index slack, Index rows,
                                  Index pair_bytes, bool mean) {
  ReviverSizes s;
  s.slack = slack;
  s.rows = rows;
  const Index left = budget - 4 * scored - slack * pair_bytes - 32 * rows;
  s.recent = 45 * left / 100 / pair_bytes;
  s.candidates = 45 * left / 100 / (pair_bytes + 4);
  s.cells = 10 * left / 100 / (rows * (pair_bytes + (mean ? 4 : 0)));
  return s;
}

inline void ReviverReference::start() {
  const Rows k = rows_of(head->k);
  const Rows v = rows_of(head->v);
  for (std::size_t i = 0; i < k.size(); ++i) {
    Token t;
    t.k = k[i];
    t.v = v[i];
    tokens.push_back(t);
  }
  const Cell zero{Vec(z(head->d()), 0), Vec(z(head->dv()), 0), 0};
  cells.assign(z(sizes.rows), std::vector<Cell>(z(sizes.cells), zero));
}

inline void ReviverReference::put(Index i, const Vec& k, const Vec& v, int direction) {
  for (std::size_t r = 0; r < cells.size(); ++r) {
    const int sign = hash_sign(words[4 * r + 2], words[4 * r + 3], i);
    Cell& c = cells[r][z(hash_cell(words[4 * r], words[4 * r + 1], i, sizes.cells))];
    for (std::size_t t = 0; t < k.size(); ++t) {
      c.k[t] = round_element(c.k[t] + static_cast<Real>(direction) * k[t], element);
    }
    for (std::size_t t = 0; t < v.size(); ++t) {
      c.v[t] = round_element(c.v[t] + static_cast<Real>(direction * sign) * v[t], element);
    }
    c.count += direction;
  }
}

inline Vec ReviverReference::rebuilt(Index i, bool value) const {
  const Index width = value ? head->dv() : head->d();
  Vec out;
  for (Index t = 0; t < width; ++t) {
    Vec x;
    for (std::size_t r = 0; r < cells.size(); ++r) {
      const Cell& c = cells[r][z(hash_cell(words[4 * r], words[4 * r + 1], i, sizes.cells))];
      const int sign = value ? hash_sign(words[4 * r + 2], words[4 * r + 3], i) : 1;
      Real e = (value ? c.v[z(t)] : c.k[z(t)]) * static_cast<Real>(sign);
      if (mean) {
        e /= static_cast<Real>(c.count);
      }
      x.push_back(e);
    }
    out.push_back(round_element(median(x), element));
  }
  return out;
}

inline Vec ReviverReference::probabilities(Index g, Index j) const {
  const float* query = head->q[z(g)].row(j - head->q_start());
  const Vec q(query, query + head->d());
  Vec logits;
  for (Index i = 0; i <= j; ++i) {
    const Token& token = tokens[z(i)];
    const Vec k = token.place == 'v' ? rebuilt(i, false) : token.k;
    logits.push_back(static_cast<Real>(head->scale) * dot(k, q));
  }
  return softmax(logits);
}

inline Vec ReviverReference::output(Index g, Index j) const {
  const Vec p = probabilities(g, j);
  Vec out(z(head->dv()), 0);
  for (Index i = 0; i <= j; ++i) {
    const Vec v = tokens[z(i)].place == 'v' ? rebuilt(i, true) : tokens[z(i)].v;
    for (std::size_t t = 0; t < out.size(); ++t) {
      out[t] += p[z(i)] * v[t];
    }
  }
  return out;
}

inline void ReviverReference::arrive(Index j, bool has_query) {
  if (!has_query) {
    return;
  }
  std::vector<Vec> p;
  for (Index g = 0; g < head->group(); ++g) {
    p.push_back(probabilities(g, j));
  }
  for (Index i = sink; i <= j; ++i) {
    Real sum = 0;
    Real most = 0;
    for (const Vec& row : p) {
      sum += row[z(i)];
      most = std::max(most, row[z(i)]);
    }
    const Real got =
        reduce == 'x' ? most : (reduce == 's' ? sum : sum / static_cast<Real>(p.size()));
    tokens[z(i)].score = static_cast<float>(static_cast<Real>(tokens[z(i)].score) + got);
  }
}

inline std::vector<Index> ReviverReference::in(char place) const {
  std::vector<Index> out;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].place == place) {
      out.push_back(static_cast<Index>(i));
    }
  }
  return out;
}

inline void ReviverReference::insert(Index i) {
  tokens[z(i)].place = 'r';
  const auto least_candidate = [this] {
    Index best = -1;
    for (const Index c : in('c')) {
      best = best < 0 || tokens[z(c)].score <= tokens[z(best)].score ? c : best;
    }
    return best;
  };
  const auto to_sketch = [this](Index c) {
    put(c, tokens[z(c)].k, tokens[z(c)].v, 1);
    tokens[z(c)].place = 'v';
    tokens[z(c)].estimated = false;
  };
  const std::vector<Index> recent = in('r');
  const auto size = static_cast<Index>(recent.size());
  if (size > sizes.recent + sizes.slack) {
    for (Index r = 0; r < size - sizes.recent; ++r) {
      tokens[z(recent[z(r)])].place = 'c';
    }
  }
  while (static_cast<Index>(in('c').size()) > sizes.candidates) {
    to_sketch(least_candidate());
  }
  while (!in('c').empty() && !in('v').empty()) {
    const Index out = least_candidate();
    Index back = -1;
    for (const Index v : in('v')) {
      back = back < 0 || tokens[z(v)].score > tokens[z(back)].score ? v : back;
    }
    if (!(static_cast<double>(tokens[z(out)].score) * replace_rate <
          static_cast<double>(tokens[z(back)].score))) {
      break;
    }
    Token& b = tokens[z(back)];
    b.k = rebuilt(back, false);
    b.v = rebuilt(back, true);
    put(back, b.k, b.v, -1);
    to_sketch(out);
    b.place = 'c';
    b.estimated = true;
    ++swaps;
  }
}

}  // namespace reference
