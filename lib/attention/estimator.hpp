// The weighted estimator that every method ends in (docs/methods.md, "The estimator"):
//
//   z(q) = sum_N w exp(s<k,q>) v / (sum_D w exp(s<k,q>) + exp(sink logit))
//
// as running float64 sums under one shift for both sets. Sets are added part by part. The shift is
// the largest s<k,q> + log w seen in either set, so nothing overflows, and terms that underflow are
// below the rounding of the others.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "attention/inner_products.hpp"
#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// The sums that rows enter.
enum class SoftmaxPart { both, numerator, denominator };

struct WeightedRows {
  MatrixView keys;                 ///< [., d]
  MatrixView values;               ///< [., dv]; not read for SoftmaxPart::denominator
  std::span<const Index> rows;     ///< of both
  std::span<const float> weights;  ///< [rows] in [0, inf); empty: `common` for all
  float common = 1.0F;
  SoftmaxPart part = SoftmaxPart::both;
  /// Query r sees rows below `visible_from` + r (the causal mask); none: all rows.
  std::optional<Index> visible_from = {};
  bool of_head = false;  ///< keys and values are the head's own, which a backend may hold
  Index window = 0;      ///< query r sees no row below `visible_from` + r - window; 0: no bound
  /// [rows] positions in the prompt, ascending; empty: `rows` themselves.
  std::span<const Index> positions = {};
};

/// The range of `entering` (ascending indices into `rows`; null: all) that query r sees.
Range seen_rows(const WeightedRows& set, const std::vector<std::size_t>* entering, Index r);

/// `set` in parts of at most kSetTokens rows, in order. Each part has its own shift, so memory does
/// not grow with n.
std::vector<WeightedRows> parts_of(const WeightedRows& set);

inline constexpr Index kSetTokens = 4096;

/// Sums over rows, each query under its own shift. Sums that `part` excludes are 0.
struct PartialSums {
  MatrixD numerator;                // [m, dv]: sum of w exp(s<k,q> - shift) v
  std::vector<double> denominator;  // [m]: sum of w exp(s<k,q> - shift)
  std::vector<double> shift;        // [m]: the largest s<k,q> + log w; -inf where nothing entered
};

/// Factors that bring two sums under the larger of their shifts.
struct CommonShift {
  double top, mine, theirs;

  KVB_HD CommonShift(double a, double b)
      : top(a < b ? b : a), mine(exp_shared(a - top)), theirs(exp_shared(b - top)) {}
};

/// Numerator and denominator sums of m queries of one query head. Jobs copy the sums over sinks and
/// recent tokens, which are computed once per head.
class SoftmaxSums {
 public:
  /// `queries` [m, d], times the scale s, must outlive this. `precision`: of products and
  /// exponentials. `sink_logits` [m]: the first term of each denominator; empty: none.
  SoftmaxSums(const MatrixD& queries, Index dv, Precision precision,
              std::span<const float> sink_logits = {});

  const MatrixD& queries() const { return *queries_; }
  Precision precision() const { return precision_; }

  /// Adds rows. A weight of 0 contributes nothing.
  void add(const WeightedRows& set);

  /// Adds rows that all queries see.
  void add_rows(MatrixView keys, MatrixView values, std::span<const Index> rows,
                std::span<const float> weights, float common, SoftmaxPart part);

  /// Adds sums computed elsewhere, by CommonShift.
  void add(const PartialSums& sums);

  /// For a backend that does so itself, part by part (parts_of).
  PartialSums& sums() { return sums_; }

  /// z [m, dv]. Rows whose denominator is 0 or not finite are NaN.
  MatrixD output() const;

  /// [m]: log of the denominator; -inf where nothing entered it.
  std::vector<double> log_denominator() const;

 private:
  template <class T>
  void add_in(const WeightedRows& set);

  const MatrixD* queries_;
  Precision precision_;
  PartialSums sums_;
};

/// Positions `rows`, ascending, of the head with weight 1, under the causal mask and the window of
/// its last `m` queries. Query r is at position n - m + r.
WeightedRows causal_rows(const KvHead& head, std::span<const Index> rows, Index m);

/// The last `m` queries [m, d] of query head `g`, times the scale.
MatrixD scaled_queries(const KvHead& head, Index g, Index m);

}  // namespace kvbench
