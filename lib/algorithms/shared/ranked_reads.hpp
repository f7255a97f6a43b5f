// Shared by retrieval methods: each query ranks the entries of an index (tokens, or pages of
// tokens) and reads the first of them. Budgets and unions of a group's query heads are decided
// here.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `union`: whether a query head reads what it asked for (`head`), or all heads of
/// the group read what any of them asked for (`group`).
ParamSpec union_param();
bool reads_unions(const Params& params);

/// Entries of one query, or of a union of queries, in the order in which they are read as `level`
/// rises: at a limit t, the query reads the entries whose level is below t.
struct RankedEntries {
  std::vector<std::uint32_t> entries;
  std::vector<double> levels;  ///< ascending

  std::size_t count_below(double limit) const;
};

/// Entries of all lists below `limit`.
Index count_below(std::span<const RankedEntries> lists, double limit);

/// The union of a query's lists over the group: each entry at the lowest of its levels. `lists`: by
/// head, then query, of `queries` queries.
RankedEntries union_of(std::span<const RankedEntries> lists, Index query, Index queries);

/// What the entries of an index are and cost.
struct ReadCosts {
  Index entries = 0;
  Index page = 1;         ///< tokens of an entry; the last may have fewer
  Index entry_bytes = 0;  ///< of a full entry
  Index index_bytes = 0;  ///< read by every query
  Index least = 1;        ///< fewest entries that a query may read
};

/// Tokens of the task in the entries of `list` whose level is below `limit`, ascending.
std::vector<std::uint32_t> tokens_below(const RankedEntries& list, double limit, Index page,
                                        std::span<const Index> tokens);

/// Throws Infeasible unless the index and `least` entries fit the task's budget, if it has one.
void check_least(const Task& task, const ReadCosts& costs);

/// The largest limit, at most `highest`, whose bytes fit the task's budget in the mean over
/// `queries` queries. `bytes`: of all of them, nondecreasing in the limit. Throws Infeasible, which
/// begins with `least`, if the bytes of the smallest positive limit do not fit.
double largest_limit(const Task& task, Index queries, double highest,
                     const std::function<Index(double limit)>& bytes, std::string_view least);

/// An index that scores its entries by an inner product.
struct ScoredIndex {
  ReadCosts costs;
  Matrix made = {};              ///< [entries, c] rows to multiply with; empty: `of` and `rows`
  MatrixView of = {};            ///< [., c]
  std::vector<Index> rows = {};  ///< [entries]; empty: all of `made`
  /// [evaluated, c]: what the queries of query head `g` multiply with; null: scaled queries.
  std::function<MatrixD(Index g)> queries = nullptr;
  Figures diag = {};
};

/// Reads of the entries with the largest scores, ties to the first: as many for every query as the
/// budget allows, or `size` entries if the parameter of that name is given. With `union=group` the
/// largest count whose unions fit in the mean over the queries.
std::unique_ptr<ReadIndex> ranked_reads(const Task& task, const Params& params,
                                        std::string_view size, ScoredIndex index);

}  // namespace kvbench
