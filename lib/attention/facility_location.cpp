#include "attention/facility_location.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "attention/device.hpp"

namespace kvbench {
namespace {

constexpr Index kBlock = UnitKeys::kBlock;

Index blocks_for(Index count) {
  return (count + kBlock - 1) / kBlock;
}

}  // namespace

UnitKeys::UnitKeys(Index capacity, Index d) : d_(d) {
  const Index count = blocks_for(capacity);
  columns_.resize(static_cast<std::size_t>(count));
  for (MatrixD& block : columns_) {
    block.resize(d, kBlock);
    std::fill_n(block.data(), d * kBlock, 0.0);
  }
  norms_.assign(static_cast<std::size_t>(count * kBlock), 0.0);
  offsets_.assign(static_cast<std::size_t>(count * kBlock), 0.0);
}

void UnitKeys::set(Index place, std::span<const float> key) {
  const double norm = std::sqrt(squared_norm(key));
  norms_[static_cast<std::size_t>(place)] = norm;
  offsets_[static_cast<std::size_t>(place)] = norm > 0.0 ? 0.5 : 0.0;
  double* column = columns_[static_cast<std::size_t>(place / kBlock)].data() + place % kBlock;
  for (Index t = 0; t < d_; ++t) {
    column[t * kBlock] =
        norm > 0.0 ? static_cast<double>(key[static_cast<std::size_t>(t)]) / norm : 0.0;
  }
}

void UnitKeys::copy(Index from, Index to) {
  norms_[static_cast<std::size_t>(to)] = norms_[static_cast<std::size_t>(from)];
  offsets_[static_cast<std::size_t>(to)] = offsets_[static_cast<std::size_t>(from)];
  const double* a = columns_[static_cast<std::size_t>(from / kBlock)].data() + from % kBlock;
  double* b = columns_[static_cast<std::size_t>(to / kBlock)].data() + to % kBlock;
  for (Index t = 0; t < d_; ++t) {
    b[t * kBlock] = a[t * kBlock];
  }
}

void UnitKeys::row(Index place, MatrixD& rows, Index to) const {
  const double* column = columns_[static_cast<std::size_t>(place / kBlock)].data() + place % kBlock;
  double* out = rows.row(to);
  for (Index t = 0; t < d_; ++t) {
    out[t] = column[t * kBlock];
  }
}

void UnitKeys::similarities(Similarity kind, Index from, Index b, const double* cosines,
                            std::int32_t* out) const {
  // Each loop has its kind as a constant, so that it vectorises.
  switch (kind) {
    // The branches differ in what fixed_similarity gets.
    case Similarity::relu:  // NOLINT(bugprone-branch-clone)
#pragma omp simd
      for (Index c = 0; c < kBlock; ++c) {
        out[c] = fixed_similarity(Similarity::relu, cosines[c], 0.0);
      }
      break;
    case Similarity::absolute:
#pragma omp simd
      for (Index c = 0; c < kBlock; ++c) {
        out[c] = fixed_similarity(Similarity::absolute, cosines[c], 0.0);
      }
      break;
    case Similarity::one_plus: {
      if (is_zero(from)) {
        std::fill_n(out, kBlock, 0);
        break;
      }
      const double* offset = offsets_.data() + b * kBlock;
#pragma omp simd
      for (Index c = 0; c < kBlock; ++c) {
        out[c] = fixed_similarity(Similarity::one_plus, cosines[c], offset[c]);
      }
      break;
    }
  }
}

FacilityLocation::FacilityLocation(MatrixView keys, std::span<const Index> ground, Similarity kind,
                                   Index matrix_bytes, const DeviceHead* device)
    : n_(static_cast<Index>(ground.size())), kind_(kind), units_(n_, keys.cols) {
  for (Index i = 0; i < n_; ++i) {
    units_.set(i, keys.row_span(ground[static_cast<std::size_t>(i)]));
    total_ += units_.is_zero(i) ? 0 : kSimilarityOne;
  }
  if (device != nullptr) {
    device_ = device->coverage(units_, n_, kind);
    units_ = UnitKeys(0, keys.cols);
    return;
  }
  const Index padded = units_.padded();
  best_.assign(static_cast<std::size_t>(padded), 0);
  if (n_ == 0 || padded * padded > matrix_bytes / 4) {
    return;
  }
  matrix_.resize(static_cast<std::size_t>(padded * padded));
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

FacilityLocation::~FacilityLocation() = default;

// Hands every block of similarities on or above the diagonal to visit(bi, bj, tile): the products
// are symmetric to the bit, the FMAs of both orders being the same.
template <class Visit>
void FacilityLocation::sweep(Visit visit) {
  std::vector<std::int32_t> tile(static_cast<std::size_t>(kBlock * kBlock));
  for (Index bi = 0; bi < units_.blocks(); ++bi) {
    transpose(units_.block(bi), rows_);
    for (Index bj = bi; bj < units_.blocks(); ++bj) {
      inner_products(rows_, units_.block(bj), cosines_);
      for (Index r = 0; r < kBlock; ++r) {
        units_.similarities(kind_, bi * kBlock + r, bj, cosines_.row(r), tile.data() + r * kBlock);
      }
      visit(bi, bj, tile.data());
    }
  }
}

// With an empty A the gain is the plain sum of the row.
std::vector<std::int64_t> FacilityLocation::singletons() {
  if (device_ != nullptr) {
    return device_->singletons();
  }
  std::vector<std::int64_t> out(static_cast<std::size_t>(units_.padded()), 0);
  const auto row_sum = [](const std::int32_t* row, Index count) {
    std::int64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index c = 0; c < count; ++c) {
      sum += static_cast<std::int64_t>(row[c]);
    }
    return sum;
  };
  if (has_matrix()) {
    for (Index u = 0; u < n_; ++u) {
      out[static_cast<std::size_t>(u)] =
          row_sum(matrix_.data() + u * units_.padded(), units_.padded());
    }
  } else {
    sweep([&](Index bi, Index bj, const std::int32_t* tile) {
      std::int64_t* columns = out.data() + bj * kBlock;
      for (Index r = 0; r < kBlock; ++r) {
        const std::int32_t* row = tile + r * kBlock;
        out[static_cast<std::size_t>(bi * kBlock + r)] += row_sum(row, kBlock);
        for (Index c = 0; bj != bi && c < kBlock; ++c) {
          columns[c] += row[c];
        }
      }
    });
  }
  out.resize(static_cast<std::size_t>(n_));
  return out;
}

std::int64_t FacilityLocation::gain_in_block(const std::int32_t* similarities, Index b) const {
  const std::int32_t* best = best_.data() + b * kBlock;
  std::int64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index c = 0; c < kBlock; ++c) {
    const std::int32_t more = similarities[c] - best[c];
    sum += static_cast<std::int64_t>(more > 0 ? more : 0);
  }
  return sum;
}

void FacilityLocation::gains(std::span<const Index> candidates, std::span<std::int64_t> out) {
  if (device_ != nullptr) {
    device_->gains(candidates, out);
    return;
  }
  std::fill(out.begin(), out.end(), 0);
  if (has_matrix()) {
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const std::int32_t* row = matrix_.data() + candidates[i] * units_.padded();
      for (Index b = 0; b < units_.blocks(); ++b) {
        out[i] += gain_in_block(row + b * kBlock, b);
      }
    }
    return;
  }
  alignas(64) std::array<std::int32_t, static_cast<std::size_t>(kBlock)> row;
  const auto step = static_cast<std::size_t>(batch());
  for (std::size_t i = 0; i < candidates.size(); i += step) {
    const std::size_t count = std::min(step, candidates.size() - i);
    rows_.resize(static_cast<Index>(count), units_.d());
    for (std::size_t r = 0; r < count; ++r) {
      units_.row(candidates[i + r], rows_, static_cast<Index>(r));
    }
    for (Index b = 0; b < units_.blocks(); ++b) {
      inner_products(rows_, units_.block(b), cosines_);
      for (std::size_t r = 0; r < count; ++r) {
        units_.similarities(kind_, candidates[i + r], b, cosines_.row(static_cast<Index>(r)),
                            row.data());
        out[i + r] += gain_in_block(row.data(), b);
      }
    }
  }
}

void FacilityLocation::add(Index u) {
  if (device_ != nullptr) {
    value_ += device_->add(u);
    return;
  }
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

RetainedKeys::RetainedKeys(Index capacity, Index d, Similarity kind, bool track)
    : kind_(kind), track_(track), units_(capacity, d) {
  neighbours_.reserve(static_cast<std::size_t>(capacity));
}

void RetainedKeys::add(std::span<const float> key) {
  const Index place = size_++;
  units_.set(place, key);
  value_ += self(place);
  if (!track_) {
    return;
  }
  before_ = neighbours_;
  neighbours_.emplace_back();
  std::array<std::int32_t, static_cast<std::size_t>(kBlock)> row;
  rows_.resize(1, units_.d());
  units_.row(place, rows_, 0);
  Neighbour& own = neighbours_.back();
  for (Index b = 0; b * kBlock < size_; ++b) {
    inner_products(rows_, units_.block(b), cosines_);
    units_.similarities(kind_, place, b, cosines_.row(0), row.data());
    const Index end = std::min(place, (b + 1) * kBlock);
    for (Index i = b * kBlock; i < end; ++i) {
      const std::int32_t similarity = row[static_cast<std::size_t>(i - b * kBlock)];
      Neighbour& other = neighbours_[static_cast<std::size_t>(i)];
      // Ties go to the newcomer: among equal keys the newest is everyone's neighbour, and it is
      // older ones that leave, without orphans.
      if (similarity > 0 && similarity >= other.similarity) {
        other = {similarity, static_cast<std::int32_t>(place)};
      }
      if (similarity > 0 && similarity >= own.similarity) {
        own = {similarity, static_cast<std::int32_t>(i)};
      }
    }
  }
}

void RetainedKeys::remove(Index place) {
  const Index last = size_ - 1;
  value_ -= self(place);
  --size_;
  if (place != last) {
    units_.copy(last, place);
  }
  if (!track_) {
    return;
  }
  if (place == last && before_.size() + 1 == neighbours_.size()) {
    neighbours_ = before_;
    return;
  }
  neighbours_[static_cast<std::size_t>(place)] = neighbours_.back();
  neighbours_.pop_back();
  before_.clear();  // places have moved: what was remembered no longer holds
  orphans_.clear();
  for (Index i = 0; i < size_; ++i) {
    Neighbour& neighbour = neighbours_[static_cast<std::size_t>(i)];
    if (neighbour.place == place) {
      orphans_.push_back(i);
    } else if (neighbour.place == last) {
      neighbour.place = static_cast<std::int32_t>(place);
    }
  }
  find_neighbours(orphans_);
}

void RetainedKeys::find_neighbours(std::span<const Index> places) {
  std::array<std::int32_t, static_cast<std::size_t>(kBlock)> row;
  const auto step = static_cast<std::size_t>(UnitKeys::kRows);
  for (std::size_t p = 0; p < places.size(); p += step) {
    const std::size_t count = std::min(step, places.size() - p);
    rows_.resize(static_cast<Index>(count), units_.d());
    for (std::size_t r = 0; r < count; ++r) {
      units_.row(places[p + r], rows_, static_cast<Index>(r));
      neighbours_[static_cast<std::size_t>(places[p + r])] = {};
    }
    for (Index b = 0; b * kBlock < size_; ++b) {
      inner_products(rows_, units_.block(b), cosines_);
      const Index end = std::min(size_, (b + 1) * kBlock);
      for (std::size_t r = 0; r < count; ++r) {
        Neighbour& own = neighbours_[static_cast<std::size_t>(places[p + r])];
        units_.similarities(kind_, places[p + r], b, cosines_.row(static_cast<Index>(r)),
                            row.data());
        for (Index i = b * kBlock; i < end; ++i) {
          const std::int32_t similarity = row[static_cast<std::size_t>(i - b * kBlock)];
          if (i != places[p + r] && similarity > 0 && similarity >= own.similarity) {
            own = {similarity, static_cast<std::int32_t>(i)};
          }
        }
      }
    }
  }
}

}  // namespace kvbench
