// What the drivers of fast_attention.hpp share: tokens as halves, a panel at a time, and rows of
// queries that run the kernels of fast_attention_kernels.hpp in their order.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "attention/dense_block.hpp"
#include "attention/fast_attention_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench::fast {

/// Tokens of a list as an operand, a panel at a time. Where one panel holds all it is packed once.
template <class M>
class Panels {
 public:
  /// `most`: of tokens(); the same for the keys and the values of a list.
  Panels(M& machine, dense::TokenRows<M> rows, Index count, Index most, HalfScale scale)
      : machine_(&machine),
        rows_(std::move(rows)),
        count_(count),
        most_(std::min(count, most)),
        packed_(machine, most_, rows_.cols(), scale) {}

  /// Tokens of a panel: whole slabs, at least one.
  static Index tokens(const M& machine, Index cols) {
    const Index bytes = cols * static_cast<Index>(sizeof(float));
    return std::max(kSlab, dense::fitting(machine, bytes, kSlab));
  }

  Index most() const { return most_; }
  const HalfScale& scale() const { return packed_.scale(); }

  /// Tokens [begin, begin + most()) or what is left of them.
  SplitRows panel(Index begin) {
    if (begin != begin_) {
      const Index count = std::min(most_, count_ - begin);
      const auto from = rows_.panel(begin, count);
      packed_.pack(*machine_, from.data, from.rows, count);
      begin_ = begin;
    }
    return packed_.view();
  }

 private:
  M* machine_;
  dense::TokenRows<M> rows_;
  Index count_;
  Index most_;
  Packed<M> packed_;
  Index begin_ = -1;
};

/// Sums of rows of queries over a list of keys. Call set(), softmax() and then any of the rest.
template <class M>
class SoftmaxRows {
 public:
  /// For `m` rows that see `count` keys or fewer. `values` null: no numerators. `columns`: column
  /// sums are asked for.
  SoftmaxRows(M& machine, Index m, Index count, HalfScale queries, Panels<M>& keys,
              Panels<M>* values, Index d, Index dv, bool columns)
      : machine_(&machine),
        keys_(&keys),
        values_(values),
        d_(d),
        dv_(values == nullptr ? 0 : dv),
        width_(pieces(dv_, kTileSide) * kTileSide),
        slabs_(pieces(count, kSlab)),
        stride_(columns ? pieces(count, kKeys) * kKeys : 0),
        capacity_(std::min(padded_rows(m), std::max(kRowUnit, fitting_rows()))),
        groups_(capacity_ / kGroup),
        packed_(machine, capacity_, d, queries),
        at_(machine, capacity_),
        seen_(machine, capacity_),
        group_seen_(machine, groups_),
        states_(machine, capacity_ * slabs_),
        totals_(machine, capacity_),
        top_(machine, capacity_),
        inverse_(machine, capacity_),
        columns_(machine, groups_ * stride_),
        partial_(machine, slabs_ * capacity_ * width_),
        numerator_(machine, capacity_ * dv_) {}

  /// Rows that can be set at a time.
  Index capacity() const { return capacity_; }

  /// Query r is row at[r] (empty: r) of `in` [., d], on the machine; it sees keys below seen[r]. A
  /// logit is `factor` times the sum that the halves make.
  template <class In>
  void set(const In* in, std::span<const Index> at, std::span<const Index> seen, double factor) {
    rows_ = static_cast<Index>(seen.size());
    factor_ = factor;
    // Beyond these bounds all that is below the top vanishes, or nothing does.
    exponent_ = {static_cast<float>(std::clamp(factor / std::log(2.0), 0x1p-120, 0x1p120))};
    std::vector<Index> group_seen(static_cast<std::size_t>(groups_), 0);
    count_ = 0;
    for (std::size_t r = 0; r < seen.size(); ++r) {
      Index& most = group_seen[r / kGroup];
      most = std::max(most, seen[r]);
      count_ = std::max(count_, seen[r]);
    }
    at_.put(at);
    seen_.put(seen);
    group_seen_.put(group_seen);
    packed_.pack(*machine_, in, at.empty() ? nullptr : at_.data(), rows_);
  }

  /// `log_weights` [keys, padded], divided by the factor, on the machine; null: none.
  void softmax(const float* log_weights) {
    for (Index begin = 0; begin < count_; begin += keys_->most()) {
      dense::launch(*machine_, RowStates{packed_.view(), panel(begin, log_weights), exponent_,
                                         slabs_, states_.data()});
    }
    dense::launch(*machine_, JoinRows{states_.data(), seen_.data(), rows_, slabs_, factor_,
                                      totals_.data(), top_.data(), inverse_.data()});
  }

  /// sums [keys] += the probabilities (sums null: not wanted); numerators, where there are values.
  void weigh(const float* log_weights, double* sums, dense::Notice notice) {
    for (Index begin = 0; begin < count_; begin += keys_->most()) {
      WeighKeys kernel{packed_.view(),
                       panel(begin, log_weights),
                       exponent_,
                       top_.data(),
                       inverse_.data(),
                       sums == nullptr ? nullptr : columns_.data(),
                       stride_,
                       static_cast<float>(notice.threshold),
                       {},
                       nullptr};
      if (values_ != nullptr) {
        kernel.values = values_->panel(begin);
        kernel.numerator = partial_.data();
      }
      dense::launch(*machine_, kernel);
    }
    if (sums != nullptr) {
      dense::launch(*machine_, AddColumns{columns_.data(), group_seen_.data(),
                                          pieces(rows_, kGroup), count_, stride_, sums, notice});
    }
    if (values_ != nullptr) {
      const double unit = std::ldexp(1.0 / WeighKeys::kScale, -values_->scale().exponent);
      dense::launch(*machine_, JoinNumerators{partial_.data(), seen_.data(), rows_, dv_, width_,
                                              unit, numerator_.data()});
    }
  }

  /// Waits.
  std::vector<RowTotals> totals() const {
    std::vector<RowTotals> out(static_cast<std::size_t>(rows_));
    totals_.get(out);
    return out;
  }
  /// [rows, dv], of the exponentials below each row's shift. Waits.
  void numerator(double* to) const { numerator_.get({to, static_cast<std::size_t>(rows_ * dv_)}); }

 private:
  // Rows that every array has room for, in whole units.
  Index fitting_rows() const {
    const Index state = slabs_ * static_cast<Index>(sizeof(RowState));
    const Index most = std::max({state, pieces(stride_, kGroup) * Index{4}, slabs_ * width_ * 4,
                                 pieces(d_, kTileSide) * kTileSide * 2, dv_ * 8});
    return dense::fitting(*machine_, most, kRowUnit);
  }

  KeyPanel panel(Index begin, const float* log_weights) {
    return {keys_->panel(begin),
            log_weights == nullptr ? nullptr : log_weights + begin,
            seen_.data(),
            group_seen_.data(),
            rows_,
            begin,
            std::min(keys_->most(), count_ - begin)};
  }

  M* machine_;
  Panels<M>* keys_;
  Panels<M>* values_;
  Index d_, dv_, width_, slabs_, stride_, capacity_, groups_;
  Index rows_ = 0;
  Index count_ = 0;  // keys that some row sees
  double factor_ = 1.0;
  Exponent exponent_{};
  Packed<M> packed_;
  Array<Index, M> at_, seen_;   // [capacity]
  Array<Index, M> group_seen_;  // [groups]
  Array<RowState, M> states_;   // [rows, slabs]
  Array<RowTotals, M> totals_;  // [capacity], as are the next two
  Array<float, M> top_, inverse_;
  Array<float, M> columns_;     // [groups, stride]
  Array<float, M> partial_;     // [slabs, rows, width]
  Array<double, M> numerator_;  // [rows, dv]
};

/// Logits per unit of a sum.
inline double factor_of(double scale, HalfScale a, HalfScale b) {
  return std::ldexp(scale, -a.exponent - b.exponent);
}

}  // namespace kvbench::fast
