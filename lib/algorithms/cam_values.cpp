#include "algorithms/cam_values.hpp"

#include <fmt/format.h>

#include "core/float16.hpp"

namespace kvbench {

std::vector<float> CamValues::value_of(Index token) const {
  const auto found = changed_.find(token);
  if (found != changed_.end()) {
    return found->second;
  }
  const auto row = head_.v.view().row_span(token);
  return {row.begin(), row.end()};
}

void CamValues::evict(const Eviction& evicted, std::span<const Index> kept) {
  const auto width = static_cast<double>(evicted.after_count);
  if (evicted.after_count > 0 && draws_.uniform(static_cast<std::uint64_t>(evicted.token)) <
                                     cam_probability(evicted.score, evicted.after_sum / width)) {
    ++merged_;
    const std::vector<float> value = value_of(evicted.token);
    const auto first = std::upper_bound(kept.begin(), kept.end(), evicted.token);
    for (auto it = first; it != first + evicted.after_count; ++it) {
      std::vector<float> target = value_of(*it);
      for (std::size_t c = 0; c < target.size(); ++c) {
        target[c] = stored(head_.dtype,
                           static_cast<double>(target[c]) + static_cast<double>(value[c]) / width);
      }
      changed_[*it] = std::move(target);
    }
  }
  changed_.erase(evicted.token);
}

Compressed CamValues::view(std::span<const Index> kept) const {
  Compressed out;
  for (const Index token : kept) {
    if (!changed_.contains(token)) {
      out.held.tokens.push_back(token);
    }
  }
  const auto made = static_cast<Index>(changed_.size());
  out.made.k = Matrix(made, head_.d());
  out.made.v = Matrix(made, head_.dv());
  Index row = 0;
  for (const auto& [token, value] : changed_) {
    std::copy_n(head_.k.row(token), head_.d(), out.made.k.row(row));
    std::copy(value.begin(), value.end(), out.made.v.row(row));
    ++row;
  }
  out.diag = {{"merged", fmt::format("{}", merged_)}, {"changed", fmt::format("{}", made)}};
  return out;
}

}  // namespace kvbench
