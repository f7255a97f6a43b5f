// What reference queries pay to the tokens of a task: what attention-matching fits to.
#pragma once

#include <span>
#include <vector>

#include "algorithms/contract.hpp"
#include "attention/inner_products.hpp"

namespace kvbench {

/// How the softmax weights of a token from all reference queries become one score.
enum class KeyScore { none, rms, mean, max };

/// The queries at `positions` times the scale, those of all query heads of the group: heads one
/// after another, each by position; those that the trace does not hold are left out. [R, d]
MatrixD reference_rows(const KvHead& head, Range positions);
/// The last `count` queries of a set of extra ones, in the same way.
MatrixD reference_rows(const KvHead& head, const ExtraSet& set, Index count);

/// Reference queries are rows (reference_rows). Every one attends all tokens of the task, uncausal.
/// R rows, m tokens.
class ReferenceAttention {
 public:
  /// Rows whose logits over all tokens are in memory at once.
  static constexpr Index kBlock = 48;

  /// `queries` [R, d]; R may be 0. One pass over all tokens; time O(R m (d + dv)), memory O(R (d +
  /// dv)
  /// + m d). The order of summation of what scores is fixed, so that selections depend on no
  /// blocking.
  ReferenceAttention(const KvHead& head, std::span<const Index> tokens, MatrixD queries,
                     KeyScore score);

  Index rows() const { return queries_.rows(); }
  /// [m]: the KeyScore of each token; empty for `none`; 0 where R is 0.
  const std::vector<double>& scores() const { return scores_; }
  /// [R] y: sum over the tokens of exp(logit - the row's largest logit).
  const std::vector<double>& mass() const { return mass_; }
  /// [R, dv]: exact attention outputs over the tokens.
  const MatrixD& output() const { return output_; }

  /// [R, B]: exp(logit - the row's largest logit over all of the task's tokens) of `kept`.
  MatrixD exponentials(const KvHead& head, std::span<const Index> kept) const;
  /// [R, B]: softmax over `kept` with weights w [B] (0: none), each row's sum 1. A row all of whose
  /// weights are 0 is 0.
  MatrixD softmax(const KvHead& head, std::span<const Index> kept, std::span<const float> w) const;

 private:
  MatrixD logits(const KvHead& head, std::span<const Index> kept) const;

  MatrixD queries_;            // [R, d], times the scale
  std::vector<double> shift_;  // [R]
  std::vector<double> mass_;
  std::vector<double> scores_;
  MatrixD output_;
};

}  // namespace kvbench
