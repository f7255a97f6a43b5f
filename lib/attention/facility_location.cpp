#include "attention/facility_location.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>

#include "core/shared_work.hpp"

namespace kvbench {
namespace {

constexpr Index kBlock = UnitKeys<float>::kBlock;
constexpr Index kBlocksOfPart = 32;  // blocks of a part of one batch of gains

}  // namespace

template <class T>
UnitKeys<T>::UnitKeys(Index capacity, Index d) : d_(d) {
  const Index count = (capacity + kBlock - 1) / kBlock;
  columns_.assign(count, BasicMatrix<T>(d, kBlock));
  norms_.assign(count * kBlock, 0.0);
  offsets_.assign(count * kBlock, T{0});
}

template <class T>
void UnitKeys<T>::set(Index place, std::span<const float> key) {
  const double norm = std::sqrt(squared_norm(key));
  norms_[place] = norm;
  offsets_[place] = norm > 0.0 ? T{0.5} : T{0};
  T* column = columns_[place / kBlock].data() + place % kBlock;
  for (Index t = 0; t < d_; ++t) {
    column[t * kBlock] = norm > 0.0 ? static_cast<T>(static_cast<double>(key[t]) / norm) : T{0};
  }
}

template <class T>
void UnitKeys<T>::row(Index place, BasicMatrix<T>& rows, Index to) const {
  const T* column = columns_[place / kBlock].data() + place % kBlock;
  T* out = rows.row(to);
  for (Index t = 0; t < d_; ++t) {
    out[t] = column[t * kBlock];
  }
}

template <class T>
void UnitKeys<T>::similarities(Similarity kind, Index from, Index b, const T* cosines,
                               std::int32_t* out) const {
  const T equal = cosine_of_equal<T>(d_);
  // A constant kind lets each loop vectorise.
  switch (kind) {
    case Similarity::relu:  // NOLINT(bugprone-branch-clone)
#pragma omp simd
      for (Index c = 0; c < kBlock; ++c) {
        out[c] = fixed_similarity(Similarity::relu, cosines[c], equal, T{0});
      }
      break;
    case Similarity::absolute:
#pragma omp simd
      for (Index c = 0; c < kBlock; ++c) {
        out[c] = fixed_similarity(Similarity::absolute, cosines[c], equal, T{0});
      }
      break;
    case Similarity::one_plus: {
      if (is_zero(from)) {
        std::fill_n(out, kBlock, 0);
        break;
      }
      const T* offset = offsets_.data() + b * kBlock;
#pragma omp simd
      for (Index c = 0; c < kBlock; ++c) {
        out[c] = fixed_similarity(Similarity::one_plus, cosines[c], equal, offset[c]);
      }
      break;
    }
  }
}

template <class T>
FacilityLocation<T>::FacilityLocation(MatrixView keys, std::span<const Index> ground,
                                      Similarity kind, Index matrix_bytes)
    : n_(static_cast<Index>(ground.size())), kind_(kind), units_(n_, keys.cols) {
  for (Index i = 0; i < n_; ++i) {
    units_.set(i, keys.row_span(ground[i]));
    total_ += units_.is_zero(i) ? 0 : kSimilarityOne;
  }
  const Index padded = units_.padded();
  best_.assign(padded, 0);
  if (n_ == 0 || padded * padded > matrix_bytes / 4) {
    return;
  }
  matrix_.resize(padded * padded);
  sweep([&](Index bi, Index bj, const std::int32_t* tile) {
    for (Index r = 0; r < kBlock; ++r) {
      std::copy_n(tile + r * kBlock, kBlock,
                  matrix_.data() + (bi * kBlock + r) * padded + bj * kBlock);
    }
    for (Index c = 0; bj != bi && c < kBlock; ++c) {
      std::int32_t* out = matrix_.data() + (bj * kBlock + c) * padded + bi * kBlock;
      for (Index r = 0; r < kBlock; ++r) {
        out[r] = tile[r * kBlock + c];
      }
    }
  });
}

// Calls visit(bi, bj, tile) for every block of similarities on or above the diagonal, for different
// bi at the same time. Products are symmetric to the bit: both orders have the same FMAs.
template <class T>
template <class Visit>
void FacilityLocation<T>::sweep(Visit visit) {
  share_work(units_.blocks(), [&](Index bi) {
    std::vector<std::int32_t> tile(kBlock * kBlock);
    BasicMatrix<T> rows;
    BasicMatrix<T> cosines;
    transpose(units_.block(bi), rows);
    for (Index bj = bi; bj < units_.blocks(); ++bj) {
      inner_products(rows, units_.block(bj), cosines);
      for (Index r = 0; r < kBlock; ++r) {
        units_.similarities(kind_, bi * kBlock + r, bj, cosines.row(r), tile.data() + r * kBlock);
      }
      visit(bi, bj, tile.data());
    }
  });
}

template <class T>
std::vector<std::int64_t> FacilityLocation<T>::all_gains() {
  std::vector<std::int64_t> out(units_.padded(), 0);
  if (has_matrix()) {
    for (Index u = 0; u < n_; ++u) {
      out[u] = gain_in_row(matrix_.data() + u * units_.padded());
    }
  } else {
    std::mutex mutex;
    sweep([&](Index bi, Index bj, const std::int32_t* tile) {
      std::array<std::int64_t, static_cast<std::size_t>(kBlock)> rows{};
      std::array<std::int64_t, static_cast<std::size_t>(kBlock)> columns{};
      const std::int32_t* best = best_.data() + bi * kBlock;
      for (Index r = 0; r < kBlock; ++r) {
        const std::int32_t* row = tile + r * kBlock;
        rows[r] = gain_in_block(row, bj);
        const std::int32_t own = best[r];
#pragma omp simd
        for (Index c = 0; c < kBlock; ++c) {
          const std::int32_t more = row[c] - own;
          columns[c] += static_cast<std::int64_t>(more > 0 ? more : 0);
        }
      }
      const std::lock_guard lock(mutex);  // integers: exact in any order
      for (Index i = 0; i < kBlock; ++i) {
        out[bi * kBlock + i] += rows[i];
        out[bj * kBlock + i] += bj != bi ? columns[i] : 0;
      }
    });
  }
  out.resize(n_);
  return out;
}

template <class T>
std::int64_t FacilityLocation<T>::gain_in_block(const std::int32_t* similarities, Index b) const {
  const std::int32_t* best = best_.data() + b * kBlock;
  std::int64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index c = 0; c < kBlock; ++c) {
    const std::int32_t more = similarities[c] - best[c];
    sum += static_cast<std::int64_t>(more > 0 ? more : 0);
  }
  return sum;
}

template <class T>
std::int64_t FacilityLocation<T>::gain_in_row(const std::int32_t* row) const {
  std::int64_t sum = 0;
  for (Index b = 0; b < units_.blocks(); ++b) {
    sum += gain_in_block(row + b * kBlock, b);
  }
  return sum;
}

template <class T>
void FacilityLocation<T>::gains(std::span<const Index> candidates, std::span<std::int64_t> out) {
  std::fill(out.begin(), out.end(), 0);
  if (has_matrix()) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      out[i] = gain_in_row(matrix_.data() + candidates[i] * units_.padded());
    }
    return;
  }
  const auto step = static_cast<std::size_t>(batch());
  for (std::size_t i = 0; i < candidates.size(); i += step) {
    const std::size_t count = std::min(step, candidates.size() - i);
    rows_.resize(static_cast<Index>(count), units_.d());
    for (std::size_t r = 0; r < count; ++r) {
      units_.row(candidates[i + r], rows_, static_cast<Index>(r));
    }
    const Index parts = (units_.blocks() + kBlocksOfPart - 1) / kBlocksOfPart;
    std::mutex mutex;
    share_work(parts, [&](Index part) {
      alignas(64) std::array<std::int32_t, static_cast<std::size_t>(kBlock)> row;
      BasicMatrix<T> cosines;
      std::vector<std::int64_t> sums(count, 0);
      for (Index b = part * kBlocksOfPart;
           b < std::min(units_.blocks(), (part + 1) * kBlocksOfPart); ++b) {
        inner_products(rows_, units_.block(b), cosines);
        for (std::size_t r = 0; r < count; ++r) {
          units_.similarities(kind_, candidates[i + r], b, cosines.row(static_cast<Index>(r)),
                              row.data());
          sums[r] += gain_in_block(row.data(), b);
        }
      }
      const std::lock_guard lock(mutex);
      for (std::size_t r = 0; r < count; ++r) {
        out[i + r] += sums[r];
      }
    });
  }
}

template <class T>
void FacilityLocation<T>::add(Index u) {
  std::array<std::int32_t, static_cast<std::size_t>(kBlock)> scratch;
  if (!has_matrix()) {
    rows_.resize(1, units_.d());
    units_.row(u, rows_, 0);
  }
  for (Index b = 0; b < units_.blocks(); ++b) {
    const std::int32_t* row = scratch.data();
    if (has_matrix()) {
      row = matrix_.data() + u * units_.padded() + b * kBlock;
    } else {
      inner_products(rows_, units_.block(b), cosines_);
      units_.similarities(kind_, u, b, cosines_.row(0), scratch.data());
    }
    value_ += gain_in_block(row, b);
    std::int32_t* best = best_.data() + b * kBlock;
#pragma omp simd
    for (Index c = 0; c < kBlock; ++c) {
      best[c] = row[c] > best[c] ? row[c] : best[c];
    }
  }
}

template class UnitKeys<float>;
template class UnitKeys<double>;
template class FacilityLocation<float>;
template class FacilityLocation<double>;

}  // namespace kvbench
