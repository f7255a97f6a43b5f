// Attention from reference queries to a task's tokens, which attention-matching fits.
#pragma once

#include "algorithms/contract.hpp"
#include "attention/inner_products.hpp"

namespace kvbench {

/// How a token's softmax weights from all reference queries become a score.
enum class KeyScore { none, rms, mean, max };

/// [R, d]: the queries at `positions` times the scale, query heads of the group one after another.
/// Positions without a query in the trace are skipped.
MatrixD reference_rows(const KvHead& head, Range positions);
/// The same for the last `count` queries of an extra set.
MatrixD reference_rows(const KvHead& head, const ExtraSet& set, Index count);

/// Every reference query attends all tokens of the task, without a causal mask. R rows, m tokens.
class ReferenceAttention {
 public:
  /// Rows with logits in memory.
  static constexpr Index kBlock = 48;

  /// `queries` [R, d]; R may be 0. Time O(R m (d + dv)), memory O(R (d + dv) + m d). Scores are
  /// summed in a fixed order, so selections do not depend on blocking. What is computed is kept in
  /// the head's score book as `book_key`, which determines the queries, and the score; not if
  /// empty.
  ReferenceAttention(const Task& task, MatrixD queries, KeyScore score,
                     const std::string& book_key);

  Index rows() const { return queries_.rows(); }
  /// [m]; empty for `none`; 0 if R is 0.
  const std::vector<double>& scores() const { return scores_; }
  /// [R]: y = sum over the tokens of exp(logit - the row's largest logit).
  const std::vector<double>& mass() const { return mass_; }
  /// [R, dv]: exact outputs over the tokens.
  const MatrixD& output() const { return output_; }

  /// [R, B]: exp(logit - the row's largest logit over all tokens) of `kept`.
  MatrixD exponentials(const KvHead& head, std::span<const Index> kept) const;
  /// [R, B]: softmax over `kept` with weights w [B]. Rows sum to 1, or are 0 if all weights are 0.
  MatrixD softmax(const KvHead& head, std::span<const Index> kept, std::span<const float> w) const;

 private:
  MatrixD logits(const KvHead& head, std::span<const Index> kept) const;
  ScoreBook::Scores attend(const Task& task, KeyScore score) const;

  MatrixD queries_;            // [R, d], times the scale
  std::vector<double> shift_;  // [R]
  std::vector<double> mass_;
  std::vector<double> scores_;
  MatrixD output_;
};

}  // namespace kvbench
