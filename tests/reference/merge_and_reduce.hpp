// MergeAndReduce as its paper's proof describes it: the whole sequence at once, batch by batch and
// level by level, with no stream in it.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "core/types.hpp"

namespace reference {

using kvbench::Index;

/// Survivors of block `number` of level `level`.
using HalveReference =
    std::function<std::vector<Index>(const std::vector<Index>& block, Index level, Index number)>;

/// C^0 .. C^T after all of `tokens`.
inline std::vector<std::vector<Index>> merge_and_reduce(const std::vector<Index>& tokens, Index t,
                                                        Index levels, const HalveReference& halve) {
  std::vector<std::vector<Index>> c(static_cast<std::size_t>(levels) + 1);
  std::vector<std::vector<Index>> batches;
  if (levels == 0) {
    c[0] = tokens;
    return c;
  }
  for (const Index token : tokens) {
    if (batches.empty() || static_cast<Index>(batches.back().size()) == t) {
      batches.emplace_back();
    }
    batches.back().push_back(token);
  }
  if (!batches.empty() && static_cast<Index>(batches.back().size()) < t) {
    c[0] = batches.back();
    batches.pop_back();
  }
  for (Index i = 0; i < levels; ++i) {
    std::vector<std::vector<Index>> halves;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      halves.push_back(halve(batches[b], i, static_cast<Index>(b)));
    }
    batches.clear();
    for (std::size_t b = 0; b < halves.size(); ++b) {
      if (i + 1 == levels) {
        auto& last = c[levels];
        last.insert(last.end(), halves[b].begin(), halves[b].end());
      } else if (b % 2 == 1) {
        batches.push_back(halves[b - 1]);
        batches.back().insert(batches.back().end(), halves[b].begin(), halves[b].end());
      } else if (b + 1 == halves.size()) {
        c[static_cast<std::size_t>(i) + 1] = halves[b];
      }
    }
  }
  return c;
}

/// The smaller side of the signs (+1 on a tie), filled up to half with the earliest others.
inline std::vector<Index> smaller_half(const std::vector<Index>& block,
                                       const std::vector<int>& signs) {
  const auto plus = std::count(signs.begin(), signs.end(), 1);
  const auto minus = std::count(signs.begin(), signs.end(), -1);
  const int side = plus <= minus ? 1 : -1;
  std::vector<Index> out;
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (signs[i] == side) {
      out.push_back(block[i]);
    }
  }
  for (std::size_t i = 0; i < block.size() && out.size() < block.size() / 2; ++i) {
    if (signs[i] != side) {
      out.push_back(block[i]);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// i with 2^i <= norm < 2^{i+1}, by counting doublings.
inline int norm_bucket(long double norm) {
  int i = 0;
  for (; norm >= 2; norm /= 2) {
    ++i;
  }
  for (; norm < 1; norm *= 2) {
    --i;
  }
  return i;
}

}  // namespace reference
