// Attention of queries to lists of tokens, for operations.cuh. Logits, weights and slab sums have
// the bits of attention/query_block.hpp. float64 sums over tokens depend on the list only.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

/// A block's tile: queries of one list x tokens of one slab.
inline constexpr int kTileRows = 64;
inline constexpr int kSlab = static_cast<int>(kTokenSlab);

/// An entry of a list.
struct Token {
  Index row;  ///< of the head; -1, -2, ...: made row 0, 1, ...
  double log_weight;
};

/// Rows that tokens refer to.
struct RowTable {
  const float* own;   ///< the head's
  const float* made;  ///< uploaded for a set
  Index width;

  __device__ const float* at(Index row) const {
    return row >= 0 ? own + row * width : made + (-1 - row) * width;
  }
};

/// A query and its list. Queries of one list are contiguous, as are their weights and partial sums.
struct Query {
  Index scaled;   ///< its row of the scaled queries; a list's queries have consecutive rows
  Index token;    ///< first token of the list
  Index count;    ///< tokens of the list
  Range seen;     ///< visible part of the list
  Index weights;  ///< first of its `count` weights
  Index slabs;    ///< slabs of values to sum; 0: values are not read
  Index partial;  ///< row of its first slab's partial sum
  double sink;    ///< logit that enters the total only; -inf: none
};

struct Tile {
  Index query;  ///< first query
  Index rows;   ///< queries, at most kTileRows
  Index begin;  ///< the slab's first token in the list
};

/// Softmax of one query: shift, sum and squared sum of its weights.
struct Figures {
  double shift, total, square;
};

class QueryPlan {
 public:
  explicit QueryPlan(const DeviceHead& head)
      : numbers_(static_cast<Index>(head.device.scratch_bytes() / sizeof(double))),
        d_(head.host->d()),
        dv_(head.host->dv()) {}

  /// How many more queries of a list of `count` tokens fit scratch_bytes in every array; may be
  /// negative. With `values`, values are summed too.
  Index free_queries(Index count, bool values) const {
    const auto all = static_cast<Index>(queries.size());
    const auto more = [&](Index width, Index before, Index each) {
      return (numbers_ / width - before) / each;
    };
    constexpr Index kPerQuery = (sizeof(Query) + sizeof(Tile) + sizeof(Figures)) / sizeof(double);
    const Index free =
        std::min({more(1, weights, count), more(d_, all, 1), more(kPerQuery, all, 1)});
    return values ? std::min({free, more(dv_, partials, slabs_of(count)), more(dv_, all, 1)})
                  : free;
  }

  /// Adds queries `scaled`, `scaled` + 1, ... of the list of `count` tokens at `token`; query r
  /// sees seen[r] of them. `sink` applies to all.
  void add(Index scaled, Index token, Index count, std::span<const Range> seen, bool values,
           double sink = -std::numeric_limits<double>::infinity());

  std::vector<Query> queries;
  std::vector<Tile> tiles;
  Index weights = 0;   ///< of all queries
  Index partials = 0;  ///< rows

 private:
  static Index slabs_of(Index count) { return ceil_div(count, kSlab); }

  Index numbers_, d_, dv_;
};

/// The result of a plan. T: element type of the head's precision.
template <class T>
struct Attended {
  Array<T> weights;
  Array<Figures> figures;    ///< [queries]
  Array<double> numerators;  ///< [queries, dv]
};

/// `scaled` [., d]: queries times the scale.
template <class T>
Attended<T> attend(const Device& device, const QueryPlan& plan, const Array<Token>& tokens,
                   RowTable keys, RowTable values, const Array<T>& scaled);

extern template Attended<float> attend(const Device&, const QueryPlan&, const Array<Token>&,
                                       RowTable, RowTable, const Array<float>&);
extern template Attended<double> attend(const Device&, const QueryPlan&, const Array<Token>&,
                                        RowTable, RowTable, const Array<double>&);

}  // namespace kvbench::gpu
