// Sums of many short lists on a machine: the launches around list_kernels.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "attention/device_tensors.hpp"
#include "attention/estimator.hpp"
#include "attention/list_kernels.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// The lists of one call, as many of them at a time as keep every array within scratch_bytes(), but
/// at least one.
template <class M>
class ListSums {
 public:
  ListSums(M& machine, const HeadTensors<M>& head, const MatrixD& queries)
      : machine_(machine),
        head_(head),
        d_(head.head->d()),
        dv_(head.head->dv()),
        queries_(machine, std::span<const double>(queries.data(),
                                                  static_cast<std::size_t>(queries.rows() * d_))) {}

  std::vector<PartialSums> run(std::span<const ListPiece> lists) {
    std::vector<PartialSums> out;
    for (std::size_t begin = 0; begin < lists.size();) {
      begin = gather(lists, begin);
      settle(lists, out);
    }
    return out;
  }

 private:
  struct Own {  // a list of this round
    std::size_t number;
    Index first, count;  // of its entries
    bool resident_keys, resident_values;
    Index extra_keys, extra_values;  // floats before its own
  };

  // Takes lists from `begin` on until scratch is full; returns the first that is left.
  std::size_t gather(std::span<const ListPiece> lists, std::size_t begin) {
    own_.clear();
    rows_.clear();
    log_weights_.clear();
    keys_.clear();
    values_.clear();
    std::size_t slab_queries = 0;
    std::size_t at = begin;
    for (; at < lists.size(); ++at) {
      const ListPiece& list = lists[at];
      const SumPiece& piece = list.piece;
      if (piece.visible_from) {
        throw std::logic_error("list_sums: a list has no causal mask");
      }
      const auto slabs = piece.rows.size() / SlabSums::kSlab + 1;
      const std::size_t made = piece.keys.data == head_.head->k.data() ? 0 : piece.rows.size();
      const auto widest = static_cast<std::size_t>(std::max(d_, dv_));
      const std::size_t most = machine_.scratch_bytes() / sizeof(double);
      slab_queries += slabs * static_cast<std::size_t>(list.queries);
      if (at > begin && (slab_queries * static_cast<std::size_t>(dv_) > most ||
                         rows_.size() + piece.rows.size() > most ||
                         std::max(keys_.size(), values_.size()) + made * widest > 2 * most)) {
        break;
      }
      add(at, piece);
    }
    return at;
  }

  void add(std::size_t number, const SumPiece& piece) {
    Own own{number,
            static_cast<Index>(rows_.size()),
            0,
            piece.keys.data == head_.head->k.data(),
            piece.values.data == head_.head->v.data(),
            static_cast<Index>(keys_.size()),
            static_cast<Index>(values_.size())};
    if (piece.part != Part::denominator && own.resident_keys != own.resident_values) {
      throw std::logic_error("list_sums: keys and values both of the head, or both made");
    }
    const auto copy = [](MatrixView from, Index row, std::vector<float>& to) {
      const auto span = from.row_span(row);
      to.insert(to.end(), span.begin(), span.end());
    };
    for (std::size_t i = 0; i < piece.rows.size(); ++i) {
      const float w = piece.weights.empty() ? piece.common : piece.weights[i];
      if (w == 0.0F) {  // log 0 would make a shift of -inf
        continue;
      }
      // Made rows follow each other where they are copied to.
      rows_.push_back(own.resident_keys ? piece.rows[i] : own.count);
      log_weights_.push_back(std::log(static_cast<double>(w)));
      ++own.count;
      if (!own.resident_keys) {
        copy(piece.keys, piece.rows[i], keys_);
        if (piece.part != Part::denominator) {
          copy(piece.values, piece.rows[i], values_);
        }
      }
    }
    own_.push_back(own);
  }

  // Runs what was gathered and appends a result per list.
  void settle(std::span<const ListPiece> lists, std::vector<PartialSums>& out) {
    const Array<Index, M> rows(machine_, std::span<const Index>(rows_));
    const Array<double, M> log_weights(machine_, std::span<const double>(log_weights_));
    const Array<float, M> keys(machine_, std::span<const float>(keys_));
    const Array<float, M> values(machine_, std::span<const float>(values_));
    std::vector<Slab> slabs;
    std::vector<SlabRun> runs;
    for (const Own& own : own_) {
      const ListPiece& list = lists[own.number];
      const float* own_keys = own.resident_keys ? head_.k.data() : keys.data() + own.extra_keys;
      const float* own_values =
          own.resident_keys ? head_.v.data() : values.data() + own.extra_values;
      for (Index q = 0; q < list.queries; ++q) {
        const auto begin = static_cast<Index>(slabs.size());
        for (Index i = 0; i < own.count; i += SlabSums::kSlab) {
          slabs.push_back({own_keys, list.piece.part == Part::denominator ? nullptr : own_values,
                           rows.data() + own.first + i, log_weights.data() + own.first + i,
                           std::min(SlabSums::kSlab, own.count - i), list.first_query + q});
        }
        runs.push_back({begin, static_cast<Index>(slabs.size())});
      }
    }
    const auto slab_count = static_cast<Index>(slabs.size());
    const auto run_count = static_cast<Index>(runs.size());
    const Array<Slab, M> slabs_there(machine_, std::span<const Slab>(slabs));
    const Array<SlabRun, M> runs_there(machine_, std::span<const SlabRun>(runs));
    const Array<double, M> tops(machine_, slab_count);
    const Array<double, M> sums(machine_, slab_count);
    const Array<double, M> numerators(machine_, slab_count * dv_);
    const Array<double, M> shift(machine_, run_count);
    const Array<double, M> total(machine_, run_count);
    Array<double, M> joined(machine_, run_count * dv_);
    joined.zero();
    machine_.launch(SlabSums{slabs_there.data(), queries_.data(), d_, dv_, tops.data(), sums.data(),
                             numerators.data()},
                    slab_count);
    machine_.launch(JoinSlabs{runs_there.data(), tops.data(), sums.data(), numerators.data(), dv_,
                              shift.data(), total.data(), joined.data()},
                    run_count);
    std::vector<double> shifts(runs.size());
    std::vector<double> totals(runs.size());
    std::vector<double> rows_out(runs.size() * static_cast<std::size_t>(dv_));
    shift.get(shifts);
    total.get(totals);
    joined.get(rows_out);
    std::size_t at = 0;
    for (const Own& own : own_) {
      const ListPiece& list = lists[own.number];
      const auto m = static_cast<std::size_t>(list.queries);
      PartialSums part{MatrixD(list.queries, dv_), std::vector<double>(m, 0.0),
                       std::vector<double>(m, -std::numeric_limits<double>::infinity())};
      for (std::size_t q = 0; q < m; ++q, ++at) {
        part.shift[q] = shifts[at];
        if (list.piece.part != Part::numerator) {
          part.denominator[q] = totals[at];
        }
        if (list.piece.part != Part::denominator) {
          std::copy_n(rows_out.data() + at * static_cast<std::size_t>(dv_), dv_,
                      part.numerator.row(static_cast<Index>(q)));
        }
      }
      out.push_back(std::move(part));
    }
  }

  M& machine_;
  const HeadTensors<M>& head_;
  Index d_, dv_;
  Array<double, M> queries_;
  std::vector<Own> own_;
  std::vector<Index> rows_;
  std::vector<double> log_weights_;
  std::vector<float> keys_, values_;  // made ones
};

/// What each list adds to the sums of its queries: PartialSums per list, in their order.
/// `queries` [., d] in float64, times the scale. Throws std::logic_error for a list with a causal
/// mask, and for one that pairs the head's keys with made values or the reverse.
template <class M>
std::vector<PartialSums> list_sums_on(M& machine, const HeadTensors<M>& head,
                                      const MatrixD& queries, std::span<const ListPiece> lists) {
  return ListSums<M>(machine, head, queries).run(lists);
}

}  // namespace kvbench
