// Attention in which each query reads its own tokens, and the products of queries with rows that
// choose them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/estimator.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Tokens by query: of each query head of a group, or one list for all of them.
struct ReadLists {
  Index queries = 0;  ///< lists of a query head
  bool shared = false;
  std::vector<std::vector<std::uint32_t>> tokens = {};  ///< by head, then query; each ascending
  std::vector<std::vector<float>> weights = {};         ///< empty (1), or as `tokens`

  bool empty() const { return tokens.empty(); }
  std::size_t place(Index g, Index query) const {
    return static_cast<std::size_t>(shared ? query : g * queries + query);
  }
  std::span<const std::uint32_t> at(Index g, Index query) const { return tokens[place(g, query)]; }
};

/// Rows of tokens.
struct TokenRows {
  MatrixView keys;                ///< [., d]
  MatrixView values;              ///< [., dv]
  std::span<const Index> tokens;  ///< of each row, ascending; empty: row i is token i
};

/// Adds to `sums`, of the last `lists.queries` queries of query head `g`, what each reads.
void add_read(const TokenRows& rows, Index g, const ReadLists& lists, SoftmaxSums& sums);

/// Calls use(j, row) for each query j in order: row[i] = <queries[j], of[rows[i]]>, one chain of
/// FMAs in `precision` (attention/inner_products.hpp), which are the logits of attention where
/// `queries` are scaled queries and `of` keys. `queries` [m, c], `of` [., c]. Memory: a block of
/// kReadBlock queries.
void visit_products(const MatrixD& queries, MatrixView of, std::span<const Index> rows,
                    Precision precision,
                    const std::function<void(Index j, std::span<const double> row)>& use);

inline constexpr Index kReadBlock = 32;  ///< queries at a time

}  // namespace kvbench
