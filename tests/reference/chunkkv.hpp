// ChunkKV's selection from its definition: chunk after chunk, each found by looking at all.
#pragma once

#include <algorithm>

#include "reference/reference.hpp"

namespace reference {

/// `count` of `tokens`, ascending: whole chunks of `length` by their mean score, and the best of
/// the chunk at which they run out; ties to the lowest.
inline std::vector<Index> chunks_kept(const std::vector<Index>& tokens, const Vec& scores,
                                      Index length, Index count) {
  struct Chunk {
    std::vector<std::pair<Real, Index>> members;  // score and token
    Real mean = 0;
  };
  std::vector<Chunk> chunks;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (static_cast<Index>(i) % length == 0) {
      chunks.emplace_back();
    }
    chunks.back().members.emplace_back(scores[i], tokens[i]);
  }
  for (Chunk& c : chunks) {
    for (const auto& [score, token] : c.members) {
      c.mean += score / static_cast<Real>(c.members.size());
    }
  }
  std::vector<Index> out;
  while (static_cast<Index>(out.size()) < count) {
    auto best = chunks.begin();
    for (auto c = chunks.begin(); c != chunks.end(); ++c) {
      if (c->mean > best->mean) {
        best = c;
      }
    }
    while (!best->members.empty() && static_cast<Index>(out.size()) < count) {
      auto first = best->members.begin();
      for (auto m = best->members.begin(); m != best->members.end(); ++m) {
        if (m->first > first->first) {
          first = m;
        }
      }
      out.push_back(first->second);
      best->members.erase(first);
    }
    chunks.erase(best);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace reference
