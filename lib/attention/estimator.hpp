// The weighted estimator that every method ends in (docs/methods.md, "The estimator"):
//
//   z(q) = sum_N w exp(s<k,q>) v / (sum_D w exp(s<k,q>) + exp(sink logit))
//
// as running sums under one shift over both sets, in float64; products and exponentials in the
// precision asked for. Sets are added part by part; the shift is the largest s<k,q> + log w seen in
// either, so nothing overflows and what underflows is below the rounding of what does not. Knows no
// method.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Which sums rows enter.
enum class Part { both, numerator, denominator };

/// Rows that enter the sums together.
struct WeightedRows {
  MatrixView keys;                 ///< [., d]
  MatrixView values;               ///< [., dv]; not read for Part::denominator
  std::span<const Index> rows;     ///< of both
  std::span<const float> weights;  ///< empty: `common`; else one per entry of `rows`, in [0, inf)
  float common = 1.0F;
  Part part = Part::both;
  /// Query r sees rows below `visible_from` + r alone (the causal mask); none: all.
  std::optional<Index> visible_from = {};
  bool of_head = false;  ///< keys and values are the head's own, which a backend may have at hand
  Index window = 0;      ///< query r sees none below `visible_from` + r - window; 0: no such bound
  /// Where the rows stand in the prompt, one per entry of `rows`, ascending; empty: at `rows`.
  std::span<const Index> positions = {};
};

/// Which of the entries of `rows` that `entering` names (ascending; null: all) query r sees.
Range seen_rows(const WeightedRows& set, const std::vector<std::size_t>* entering, Index r);

/// `set` in parts of at most kSetTokens rows, in order. Each has a shift of its own; so what a set
/// takes of memory does not grow with n.
std::vector<WeightedRows> parts_of(const WeightedRows& set);

inline constexpr Index kSetTokens = 4096;

/// What rows add, each query under a shift of its own; what `part` leaves out is 0.
struct PartialSums {
  MatrixD numerator;                // [m, dv]: sum of w exp(s<k,q> - shift) v
  std::vector<double> denominator;  // [m]: the same without v
  std::vector<double> shift;        // [m]: the largest s<k,q> + log w; -inf where nothing entered
};

/// Numerator and denominator sums of m queries of one query head. Copyable: the sums over sinks
/// and recent tokens are made once per head and every job goes on from a copy.
class SoftmaxSums {
 public:
  /// `queries` [m, d], already multiplied by the scale s; must outlive the object. `precision`: of
  /// what is added. `sink_logits`: one a query, which its denominator begins with; empty: none.
  SoftmaxSums(const MatrixD& queries, Index dv, Precision precision,
              std::span<const float> sink_logits = {});

  const MatrixD& queries() const { return *queries_; }
  Precision precision() const { return precision_; }

  /// Adds rows. A weight of 0 contributes nothing.
  void add(const WeightedRows& set);

  /// The same without a causal mask.
  void add_rows(MatrixView keys, MatrixView values, std::span<const Index> rows,
                std::span<const float> weights, float common, Part part);

  /// Adds sums that were made elsewhere, under the larger of both shifts.
  void add(const PartialSums& sums);

  /// z [m, dv]. Rows whose denominator is 0 or not finite are NaN; `degenerate` counts them.
  MatrixD output(Index& degenerate) const;

  /// log of the denominator's sum, per query; -inf where nothing entered it.
  std::vector<double> log_denominator() const;

 private:
  template <class T>
  void add_in(const WeightedRows& set);

  const MatrixD* queries_;
  Precision precision_;
  MatrixD numerator_;                // [m, dv]
  std::vector<double> denominator_;  // [m]
  std::vector<double> shift_;        // [m]
};

/// Positions `rows`, ascending, of the head with weight 1 under the causal mask and the window of
/// its last `m` queries: query r stands at position n - m + r.
WeightedRows causal_rows(const KvHead& head, std::span<const Index> rows, Index m);

/// The last `m` queries of query head `g`, times the scale: what SoftmaxSums reads.
MatrixD scaled_queries(const KvHead& head, Index g, Index m);

}  // namespace kvbench
