#include "algorithms/shared/merge_and_reduce.hpp"

#include <stdexcept>

namespace kvbench {
namespace {

void require(bool good, const char* what) {
  if (!good) {
    throw std::logic_error(what);
  }
}

}  // namespace

MergeAndReduce::MergeAndReduce(Index t, Index levels) : t_(t), top_(levels), levels_(1) {
  require(t >= 2 && t % 2 == 0, "merge-and-reduce: the batch size must be even and at least 2");
  require(levels >= 0, "merge-and-reduce: the number of levels must be at least 0");
}

void MergeAndReduce::reduce(std::span<const Index> block, Index level, Index number,
                            const HalveBlock& halve) {
  const std::vector<Index> kept = halve(block, {t_, level, number});
  require(2 * kept.size() == block.size(), "merge-and-reduce: the halving must keep exactly half");
  const auto next = static_cast<std::size_t>(level + 1);
  if (levels_.size() <= next) {
    levels_.resize(next + 1);
  }
  levels_[next].insert(levels_[next].end(), kept.begin(), kept.end());
}

void MergeAndReduce::append(Index token, const HalveBlock& halve) {
  levels_[0].push_back(token);
  ++arrivals_;
  // Arrivals per batch of level i; higher levels are due while it divides the arrivals.
  Index span = t_;
  for (Index i = 0; i < top_ && arrivals_ % span == 0; ++i) {
    const std::vector<Index> block = std::move(levels_[i]);
    levels_[i].clear();
    reduce(block, i, arrivals_ / span - 1, halve);
    span *= 2;
  }
}

void MergeAndReduce::lower(const HalveBlock& halve) {
  require(t_ % 4 == 0 && top_ == kUnlimited,
          "merge-and-reduce: lower needs t divisible by 4 and unlimited levels");
  t_ /= 2;
  // From the top, so that a level is empty before the one below is halved into it.
  for (auto i = static_cast<Index>(levels_.size()) - 1; i >= 0; --i) {
    std::vector<Index>& level = levels_[i];
    if (static_cast<Index>(level.size()) < t_) {
      continue;  // empty, or a partial batch in C^0
    }
    const std::vector<Index> block(level.begin(), level.begin() + t_);
    level.erase(level.begin(), level.begin() + t_);
    reduce(block, i, arrivals_ / (t_ << i) - 1, halve);
  }
}

Index MergeAndReduce::size() const {
  Index sum = 0;
  for (const std::vector<Index>& level : levels_) {
    sum += static_cast<Index>(level.size());
  }
  return sum;
}

double MergeAndReduce::weight() const {
  double sum = 0.0;
  double each = 1.0;
  for (const std::vector<Index>& level : levels_) {
    sum += each * static_cast<double>(level.size());
    each *= 2.0;
  }
  return sum;
}

}  // namespace kvbench
