#include "algorithms/attended_cache.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "core/math.hpp"

namespace kvbench {

AttendedCache::AttendedCache(const KvHead& head, Index capacity, Reduce reduce)
    : head_(head),
      reduce_(reduce),
      keys_(head.d(), capacity),
      scores_(at(capacity)),
      scored_(at(capacity)),
      last_(at(capacity)),
      queries_(head.group(), head.d()),
      logits_(head.group(), capacity) {
  for (Index slot = capacity - 1; slot >= 0; --slot) {
    free_.push_back(slot);
  }
}

void AttendedCache::take_in(Index token, bool scored) {
  if (free_.empty()) {
    throw std::logic_error("attended cache: no room");
  }
  const Index slot = free_.back();
  free_.pop_back();
  slots_.emplace(token, slot);
  for (Index c = 0; c < head_.d(); ++c) {
    keys_.row(c)[slot] = static_cast<double>(head_.k.row(token)[c]);
  }
  scores_[at(slot)] = 0.0F;
  scored_[at(slot)] = scored ? 1 : 0;
  last_[at(slot)] = 0.0;
}

void AttendedCache::remove(Index token) {
  const auto found = slots_.find(token);
  if (found == slots_.end()) {
    throw std::logic_error("attended cache: token is not held");
  }
  free_.push_back(found->second);
  slots_.erase(found);
}

void AttendedCache::attend(Index j) {
  for (Index g = 0; g < head_.group(); ++g) {
    const float* q = head_.q[at(g)].row(j - head_.q_start());
    for (Index c = 0; c < head_.d(); ++c) {
      queries_.row(g)[c] = static_cast<double>(q[c]);
    }
  }
  inner_products(queries_, keys_, logits_);
  for (const auto& [token, slot] : slots_) {
    last_[at(slot)] = 0.0;
  }
  for (Index g = 0; g < head_.group(); ++g) {
    double* row = logits_.row(g);
    double largest = -std::numeric_limits<double>::infinity();
    for (const auto& [token, slot] : slots_) {
      row[slot] *= head_.scale;
      largest = std::max(largest, row[slot]);
    }
    double sum = 0.0;
    for (const auto& [token, slot] : slots_) {
      row[slot] = exp_shared(row[slot] - largest);
      sum += row[slot];
    }
    for (const auto& [token, slot] : slots_) {
      const double weight = row[slot] / sum;
      double& out = last_[at(slot)];
      out = reduce_ == Reduce::max ? std::max(out, weight) : out + weight;
    }
  }
  const double heads = reduce_ == Reduce::mean ? static_cast<double>(head_.group()) : 1.0;
  for (const auto& [token, slot] : slots_) {
    if (!scored(slot)) {
      last_[at(slot)] = 0.0;
      continue;
    }
    last_[at(slot)] /= heads;
    scores_[at(slot)] =
        static_cast<float>(static_cast<double>(scores_[at(slot)]) + last_[at(slot)]);
  }
}

}  // namespace kvbench
