// Every kind of piece that an estimator's sums are made of: what tests of devices share.
#pragma once

#include <numeric>
#include <vector>

#include "attention/estimator.hpp"
#include "core/types.hpp"

namespace kvbench {

/// For m queries on `head`, with matrices of `other`, a head of the same shape, in between. Both
/// must outlive it.
class SumPieces {
 public:
  SumPieces(const KvHead& head, const KvHead& other, Index m)
      : all_(static_cast<std::size_t>(head.n())) {
    const Index n = head.n();
    std::iota(all_.begin(), all_.end(), Index{0});
    for (Index i = n - 1; i >= 0; i -= i % 3 + 1) {  // descending, with gaps
      some_.push_back(i);
      weights_.push_back(static_cast<float>(i % 4) * 0.75F);  // every fourth is 0
    }
    nothing_.resize(some_.size());
    const MatrixView k = head.k;
    const MatrixView v = head.v;
    list_ = {
        {k, v, all_, {}, 1.0F, Part::both, {}},
        {k, v, all_, {}, 1.0F, Part::both, n - m + 1},         // the causal mask
        {k, v, some_, weights_, 1.0F, Part::both, n - m - 3},  // out of order, and before the head
        {k, v, some_, weights_, 1.0F, Part::numerator, {}},
        {k, {}, some_, weights_, 1.0F, Part::denominator, {}},
        {k, v, some_, {}, 2.5F, Part::both, {}},
        {k, v, some_, {}, 0.0F, Part::both, {}},
        {k, v, some_, nothing_, 1.0F, Part::both, {}},
        {k, v, {}, {}, 1.0F, Part::both, {}},
        {k, v, all_, {}, 1.0F, Part::both, -m / 2},              // some queries see nothing
        {other.k, other.v, all_, {}, 1.0F, Part::both, {}},      // not the head's own
        {other.k, v, some_, weights_, 1.0F, Part::both, n - m},  // nor its keys
        {k, other.v, some_, weights_, 1.0F, Part::both, {}},     // nor its values
        {other.k, {}, some_, {}, 3.0F, Part::denominator, {}},
    };
  }
  SumPieces(const SumPieces&) = delete;
  SumPieces& operator=(const SumPieces&) = delete;

  const std::vector<SumPiece>& list() const { return list_; }

 private:
  std::vector<Index> all_, some_;
  std::vector<float> weights_, nothing_;
  std::vector<SumPiece> list_;
};

}  // namespace kvbench
