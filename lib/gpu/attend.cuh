// Queries that attend to lists of tokens, for the operations of attention.cuh: logits, softmax and
// weighted values, every list and query on its own, as attention/query_block.hpp defines them: the
// bits of its logits, weights and slabs' sums. Their sums over tokens in float64 depend on the list
// alone.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// A block takes a tile: so many queries of one list x a slab of so many of its tokens.
inline constexpr int kTileRows = 32;
inline constexpr int kSlab = static_cast<int>(kTokenSlab);

/// An entry of a list.
struct Token {
  Index row;  ///< of the head; below 0: of what was made, -1 the first
  double log_weight;
};

/// Rows that tokens name.
struct TokenRows {
  const float* own;   ///< the head's
  const float* made;  ///< uploaded for a set
  Index width;

  __device__ const float* at(Index row) const {
    return row >= 0 ? own + row * width : made + (-1 - row) * width;
  }
};

/// A query and the list that it attends to. Queries of one list follow each other, and so do their
/// weights and partial sums.
struct Query {
  Index token;    ///< the list: `count` tokens from here on
  Index count;    //
  Range seen;     ///< of them
  Index weights;  ///< where its `count` weights begin
  Index slabs;    ///< of values to sum; 0: values are not read
  Index partial;  ///< the row of its first slab's partial sum
  double sink;    ///< a logit that enters its total alone; -inf: none
};

struct Tile {
  Index query;  ///< the first
  Index rows;   ///< queries, at most kTileRows
  Index begin;  ///< the slab's first token in the list
};

/// What softmax finds of one query: the shift of its weights, their sum and their squares' sum.
struct Figures {
  double shift, total, square;
};

/// Queries that attend together.
class QueryPlan {
 public:
  explicit QueryPlan(const Head& head)
      : numbers_(static_cast<Index>(head.device.scratch_bytes() / sizeof(double))),
        d_(head.host->d()),
        dv_(head.host->dv()) {}

  /// How many more queries of a list of `count` tokens keep every array within scratch_bytes; may
  /// be below 0. With `values`, values are summed.
  Index free_queries(Index count, bool values) const {
    const auto all = static_cast<Index>(queries.size());
    const auto more = [&](Index width, Index before, Index each) {
      return (numbers_ / width - before) / each;
    };
    constexpr Index kPerQuery = (sizeof(Query) + sizeof(Tile) + sizeof(Figures)) / sizeof(double);
    const Index room =
        std::min({more(1, weights, count), more(d_, all, 1), more(kPerQuery, all, 1)});
    return values ? std::min({room, more(dv_, partials, slabs_of(count)), more(dv_, all, 1)})
                  : room;
  }

  /// Queries of the list of `count` tokens from `token` on; query r sees seen[r] of them. `sink`:
  /// of all these queries.
  void add(Index token, Index count, std::span<const Range> seen, bool values,
           double sink = -std::numeric_limits<double>::infinity());

  std::vector<Query> queries;
  std::vector<Tile> tiles;
  Index weights = 0;   ///< of all queries
  Index partials = 0;  ///< rows

 private:
  static Index slabs_of(Index count) { return ceil_div(count, kSlab); }

  Index numbers_, d_, dv_;
};

/// What a plan's queries attended to. T: element type of the head's precision.
template <class T>
struct Attended {
  Array<T> weights;
  Array<Figures> figures;    ///< [queries]
  Array<double> numerators;  ///< [queries, dv]
};

/// `scaled` [queries, d]: the queries, times the scale.
template <class T>
Attended<T> attend(const Device& device, const QueryPlan& plan, const Array<Token>& tokens,
                   TokenRows keys, TokenRows values, const Array<T>& scaled);

extern template Attended<float> attend(const Device&, const QueryPlan&, const Array<Token>&,
                                       TokenRows, TokenRows, const Array<float>&);
extern template Attended<double> attend(const Device&, const QueryPlan&, const Array<Token>&,
                                        TokenRows, TokenRows, const Array<double>&);

}  // namespace kvbench::gpu
