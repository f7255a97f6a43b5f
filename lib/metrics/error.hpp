// Error figures of attention outputs, in float64, from exact outputs and those of a method's cache.
// A method's own figures are never read.
#pragma once

#include <span>

#include "attention/truth.hpp"
#include "attention/value_norms.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Figures over the m evaluated queries of one query head (docs/schema.md). A NaN in an estimate
/// makes every figure that it enters NaN.
struct ErrorFigures {
  double rel_error = 0.0;       ///< |Z-A|_F / |A|_F                       (BalanceKV, section 4.1)
  double rel_error_mean = 0.0;  ///< per query |z-a| / |a|
  double rel_error_p50 = 0.0;   ///< percentiles by linear interpolation
  double rel_error_p95 = 0.0;
  double rel_error_max = 0.0;
  double eps_fro = 0.0;      ///< max_j |z_j-a_j| / (|p_j|_2 |V_{<=j}|_F)  (BalanceKV, eq. 2)
  double eps_op = 0.0;       ///< the same with the operator norm          (ClusterGen, eq. 2)
  double log_z_error = 0.0;  ///< mean |log D - log Z|, nats
  double cosine = 0.0;       ///< mean cosine of z_j and a_j; 1 if both are 0, 0 if one is
  Index infinite = 0;        ///< queries with |a| = 0 and z != 0: infinite relative error
};

/// `z` [m, dv] and `log_denominator` [m] as in SoftmaxSums; m as in `truth`.
ErrorFigures error_figures(const ExactAttention& truth, const ValueNorms& norms, const MatrixD& z,
                           std::span<const double> log_denominator);

/// a / b with 0 / 0 = 0 and x / 0 = inf. NaN stays NaN.
double relative_size(double a, double b);

/// z - a| / |a| of one query: 0 if both are 0, infinite if only `a` is, NaN if `z` is.
double query_error(std::span<const double> a, std::span<const double> z);

/// Percentile `p` in [0, 1] of `values` (at least one), linear between order statistics. NaN if any
/// value is NaN.
double percentile(std::span<const double> values, double p);

}  // namespace kvbench
