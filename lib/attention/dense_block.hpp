// What the drivers of device_dense.hpp share: tokens and packed keys a panel at a time, and a block
// of queries that runs the kernels of dense_kernels.hpp and dense_row_kernels.hpp in their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "attention/dense_kernels.hpp"
#include "attention/dense_row_kernels.hpp"
#include "core/machine.hpp"
#include "core/types.hpp"

namespace kvbench::dense {

template <class M, class Kernel>
void launch(M& machine, const Kernel& kernel) {
  if (kernel.blocks() > 0) {
    machine.launch(kernel, kernel.blocks());
  }
}

/// As many pieces of `bytes` as one array of scratch may hold, at least one; beyond `unit` in whole
/// multiples of it.
template <class M>
Index fitting(const M& machine, Index bytes, Index unit) {
  const Index most = static_cast<Index>(machine.scratch_bytes()) / std::max<Index>(bytes, 1);
  return most < unit ? std::max<Index>(most, 1) : most - most % unit;
}

/// Elements that rows of scratch begin at multiples of: lines of 128 bytes for any type.
inline constexpr Index kLine = 32;

/// Rows of a matrix that a sum runs over, as tokens 0, 1, ...: of one on the machine, or copied
/// there from the host, a panel at a time.
template <class M>
class TokenRows {
 public:
  struct Panel {
    const float* data;
    const Index* rows;  // of `data`; null: 0, 1, ...
  };

  /// `rows` on the machine, or null: all rows.
  TokenRows(const Array<float, M>& resident, Index cols, const Index* rows)
      : cols_(cols), resident_(resident.data()), resident_rows_(rows) {}
  /// Of a matrix on the host, `most` rows at a time.
  TokenRows(M& machine, MatrixView matrix, std::span<const Index> rows, Index most)
      : cols_(matrix.cols),
        matrix_(matrix),
        rows_(rows),
        most_(std::min(most, static_cast<Index>(rows.size()))),
        copied_(machine, most_ * cols_) {}

  Index cols() const { return cols_; }
  /// Tokens that a panel may have.
  Index most() const { return most_; }

  /// Tokens [begin, begin + count); gone with the next call.
  Panel panel(Index begin, Index count) {
    if (resident_ != nullptr) {
      return resident_rows_ == nullptr ? Panel{resident_ + begin * cols_, nullptr}
                                       : Panel{resident_, resident_rows_ + begin};
    }
    if (begin != begin_ || count > count_) {
      gathered_.resize(static_cast<std::size_t>(count * cols_));
      for (Index i = 0; i < count; ++i) {
        std::copy_n(matrix_.row(rows_[static_cast<std::size_t>(begin + i)]), cols_,
                    gathered_.data() + i * cols_);
      }
      copied_.put(gathered_);
      begin_ = begin;
      count_ = count;
    }
    return {copied_.data(), nullptr};
  }

 private:
  Index cols_;
  const float* resident_ = nullptr;
  const Index* resident_rows_ = nullptr;
  MatrixView matrix_;
  std::span<const Index> rows_;
  Index most_ = std::numeric_limits<Index>::max();
  Array<float, M> copied_;  // [most, cols]: tokens [begin, begin + count)
  Index begin_ = 0;
  Index count_ = 0;
  std::vector<float> gathered_;
};

/// Keys with the channels outermost, a panel at a time. Where one panel holds every key it serves
/// all queries, and grows with what they see.
template <class M>
class PackedKeys {
 public:
  PackedKeys(M& machine, TokenRows<M>& keys, Index count)
      : machine_(&machine),
        keys_(&keys),
        most_(std::min({count, keys.most(), panel_tokens(machine, keys.cols())})),
        stride_(pieces(most_, kLine) * kLine),
        packed_(machine, stride_ * keys.cols()) {}

  static Index panel_tokens(const M& machine, Index d) {
    return fitting(machine, d * static_cast<Index>(sizeof(float)), Logits::kKeys);
  }

  Index most() const { return most_; }
  Index stride() const { return stride_; }

  /// Panel [begin, begin + count) as [d, stride].
  const float* panel(Index begin, Index count) {
    if (begin != begin_) {
      begin_ = begin;
      count_ = 0;
    }
    if (count > count_) {
      const auto from = keys_->panel(begin + count_, count - count_);
      launch(*machine_, PackTransposed<float, float>{from.data, from.rows, packed_.data() + count_,
                                                     count - count_, keys_->cols(), stride_, 1.0});
      count_ = count;
    }
    return packed_.data();
  }

 private:
  M* machine_;
  TokenRows<M>* keys_;
  Index most_;
  Index stride_;
  Array<float, M> packed_;
  Index begin_ = 0;
  Index count_ = 0;
};

/// Softmax statistics of some rows, on the host.
struct RowFigures {
  std::vector<double> shift, total, square;
};

/// A block of queries against the keys of a list: logits, their softmax, and sums over both axes.
/// Call in the order of declaration.
template <class M>
class QueryBlock {
 public:
  /// For `m` queries that see `count` keys or fewer; `dv` = 0 where no values are summed.
  QueryBlock(M& machine, Index m, Index count, Index d, Index dv)
      : machine_(&machine),
        d_(d),
        dv_(dv),
        stride_(pieces(count, kLine) * kLine),
        capacity_(std::min(m, fitting(machine, row_bytes(stride_, d, dv), kTileRows))),
        at_(machine, capacity_),
        seen_(machine, capacity_),
        tile_seen_(machine, pieces(capacity_, kTileRows)),
        queries_(machine, capacity_ * d),
        logits_(machine, capacity_ * stride_),
        chunks_(machine, 3 * capacity_ * pieces(count, RowChunks::kChunk)),
        totals_(machine, 4 * capacity_),
        partial_(machine, capacity_ * dv * pieces(count, WeighValues::kSlab)),
        numerator_(machine, capacity_ * dv) {}

  /// Queries that the block can hold.
  Index capacity() const { return capacity_; }

  /// Query r is row at[r] (empty: r) of `in` [., d], on the machine, times `scale`; it sees keys
  /// below seen[r].
  template <class In>
  void set(const In* in, std::span<const Index> at, std::span<const Index> seen, double scale) {
    rows_ = static_cast<Index>(seen.size());
    std::vector<Index> tile_seen(static_cast<std::size_t>(pieces(rows_, kTileRows)), 0);
    count_ = 0;
    for (std::size_t r = 0; r < seen.size(); ++r) {
      Index& most = tile_seen[r / kTileRows];
      most = std::max(most, seen[r]);
      count_ = std::max(count_, seen[r]);
    }
    at_.put(at);
    seen_.put(seen);
    tile_seen_.put(tile_seen);
    launch(*machine_, PackTransposed<In, double>{in, at.empty() ? nullptr : at_.data(),
                                                 queries_.data(), rows_, d_, capacity_, scale});
  }

  /// `log_weights` [keys] on the machine; null: none.
  void logits(PackedKeys<M>& keys, const double* log_weights) {
    for (Index begin = 0; begin < count_; begin += keys.most()) {
      const Index count = std::min(keys.most(), count_ - begin);
      const float* panel = keys.panel(begin, count);
      launch(*machine_,
             Logits{queries_.data(), panel, log_weights == nullptr ? nullptr : log_weights + begin,
                    tile_seen_.data(), logits_.data(), rows_, count, d_, capacity_, keys.stride(),
                    stride_, begin});
    }
  }

  /// Logits become exponentials below their row's top.
  void softmax() {
    const RowChunks cut{seen_.data(), rows_, count_};
    double* tops = chunks_.data();
    double* sums = tops + rows_ * cut.chunks();
    double* squares = sums + rows_ * cut.chunks();
    launch(*machine_, RowMax{cut, logits_.data(), stride_, tops});
    launch(*machine_, RowExp{cut, logits_.data(), stride_, tops, sums, squares});
    double* totals = totals_.data();
    launch(*machine_, RowTotals{tops, sums, squares, totals, totals + rows_, totals + 2 * rows_,
                                totals + 3 * rows_, rows_, cut.chunks()});
  }

  /// out [rows, n]: the probabilities, 0 where unseen; n is at least what any query sees.
  void probabilities(double* out, Index n) {
    launch(*machine_, Probabilities{logits_.data(), totals_.data() + 3 * rows_, seen_.data(), out,
                                    rows_, n, stride_});
  }

  /// sums [keys] += the probabilities, row by row.
  void add_columns(double* sums, Notice notice) {
    launch(*machine_, ColumnSums{logits_.data(), totals_.data() + 3 * rows_, sums, notice, rows_,
                                 count_, stride_});
  }

  /// The exponentials times `values` [keys, dv].
  void weigh(TokenRows<M>& values) {
    const Index most =
        values.most() < count_ ? values.most() - values.most() % WeighValues::kSlab : count_;
    for (Index begin = 0; begin < count_; begin += most) {
      const Index count = std::min(most, count_ - begin);
      const auto from = values.panel(begin, count);
      launch(*machine_, WeighValues{logits_.data(), from.data, from.rows, tile_seen_.data(),
                                    partial_.data(), rows_, stride_, dv_, begin, count});
    }
    launch(*machine_, AddSlabs{partial_.data(), seen_.data(), numerator_.data(), rows_, dv_});
  }

  /// Waits.
  RowFigures figures() const {
    const auto rows = static_cast<std::size_t>(rows_);
    std::vector<double> all(3 * rows);
    totals_.get(all);
    const auto part = [&](std::size_t i) {
      return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(i * rows),
                                 all.begin() + static_cast<std::ptrdiff_t>((i + 1) * rows));
    };
    return {part(0), part(1), part(2)};
  }

  /// What weigh() made, [rows, dv]. Waits.
  void numerator(double* to) const { numerator_.get({to, static_cast<std::size_t>(rows_ * dv_)}); }

 private:
  // Of the largest array, per query; beside `stride` logits its few statistics are less.
  static Index row_bytes(Index stride, Index d, Index dv) {
    const Index most = std::max({stride, d, dv * pieces(stride, WeighValues::kSlab)});
    return most * static_cast<Index>(sizeof(double));
  }

  M* machine_;
  Index d_, dv_, stride_, capacity_;
  Index rows_ = 0;
  Index count_ = 0;             // keys that some query of the block sees
  Array<Index, M> at_;          // [capacity]
  Array<Index, M> seen_;        // [capacity]
  Array<Index, M> tile_seen_;   // [tiles of rows]
  Array<double, M> queries_;    // [d, capacity]
  Array<double, M> logits_;     // [capacity, stride]
  Array<double, M> chunks_;     // tops, sums, squares: each [rows, chunks]
  Array<double, M> totals_;     // shift, total, square, inverse: each [rows]
  Array<double, M> partial_;    // [slabs, rows, dv]
  Array<double, M> numerator_;  // [rows, dv]
};

}  // namespace kvbench::dense
