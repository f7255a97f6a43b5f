// KVReviver by its definition: every step rebuilds every vague token from cells that are kept as
// long double and rounded by hand, and attends all of them. Written from the paper's Algorithms 1-4
// and docs/methods.md, not from the fast code.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// An element type by its significand bits and the exponent of its smallest quantum.
struct Element {
  int bits = 24;
  int least = -149;
};
Real round_element(Real x, Element e);
Element element_of(kvbench::DType dtype);

/// The documented hash family.
Index hash_cell(std::uint64_t a, std::uint64_t b, Index position, Index cells);
int hash_sign(std::uint64_t a, std::uint64_t b, Index position);

Real median(Vec x);

struct ReviverSizes {
  Index recent = 0, slack = 16, candidates = 0, rows = 3, cells = 0;
};
/// Default shares (45, 45, 10 hundredths) of `budget` bytes by whole-number arithmetic.
ReviverSizes reviver_sizes(Index budget, Index scored, Index slack, Index rows, Index pair_bytes,
                           bool mean);

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

}  // namespace reference
