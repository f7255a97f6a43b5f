#include "reference/selection.hpp"

#include <algorithm>
#include <cmath>

namespace reference {

Rows attention_sums(const kvbench::KvHead& head, Index begin, Index end) {
  Rows out;
  for (Index g = 0; g < static_cast<Index>(head.q.size()); ++g) {
    Vec sums(static_cast<std::size_t>(head.n()), 0);
    for (Index j = std::max(begin, head.n() - head.nq()); j < end; ++j) {
      const Vec p = attention(head, g, j).p;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += p[i];
      }
    }
    out.push_back(sums);
  }
  return out;
}

Vec reduced(const Rows& scores, ReferenceReduce reduce) {
  Vec out(scores[0].size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    Real sum = 0;
    Real largest = scores[0][i];
    for (const Vec& s : scores) {
      sum += s[i];
      largest = std::max(largest, s[i]);
    }
    out[i] = reduce == ReferenceReduce::max   ? largest
             : reduce == ReferenceReduce::sum ? sum
                                              : sum / static_cast<Real>(scores.size());
  }
  return out;
}

Vec taken(const Vec& all, const std::vector<Index>& tokens) {
  Vec out;
  for (const Index i : tokens) {
    out.push_back(all[i]);
  }
  return out;
}

Vec snapkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin, Index end,
           Index half, bool largest, ReferenceReduce reduce) {
  Rows heads;
  for (const Vec& sums : attention_sums(head, begin, end)) {
    Vec scores;
    for (const Index i : tokens) {
      Vec near;
      for (const Index j : tokens) {
        if (std::abs(i - j) <= half) {
          near.push_back(sums[j] / static_cast<Real>(end - begin));
        }
      }
      Real sum = 0;
      for (const Real x : near) {
        sum += x;
      }
      scores.push_back(largest ? *std::max_element(near.begin(), near.end())
                               : sum / static_cast<Real>(near.size()));
    }
    heads.push_back(scores);
  }
  return reduced(heads, reduce);
}

std::vector<Index> best(const std::vector<Index>& tokens, const Vec& scores, Index count) {
  std::vector<Index> out;
  for (const Index i : top(scores, count)) {
    out.push_back(tokens[i]);
  }
  return out;
}

std::vector<Index> pooled_counts(const Rows& scores, Index each, Index safe) {
  std::vector<std::vector<bool>> taken;
  std::vector<Index> counts(scores.size(), 0);
  const auto take = [&](std::size_t from, std::size_t to) {
    bool found = false;
    std::size_t head = 0;
    std::size_t place = 0;
    for (std::size_t i = 0; i < scores[0].size(); ++i) {
      for (std::size_t h = from; h < to; ++h) {
        if (!taken[h][i] && (!found || scores[h][i] > scores[head][place])) {
          found = true;
          head = h;
          place = i;
        }
      }
    }
    taken[head][place] = true;
    ++counts[head];
  };
  for (std::size_t h = 0; h < scores.size(); ++h) {
    taken.emplace_back(scores[h].size(), false);
  }
  for (std::size_t h = 0; h < scores.size(); ++h) {
    for (Index i = 0; i < safe; ++i) {
      take(h, h + 1);
    }
  }
  for (Index i = 0; i < (each - safe) * static_cast<Index>(scores.size()); ++i) {
    take(0, scores.size());
  }
  return counts;
}

std::vector<std::vector<Index>> best_of_heads(const std::vector<Index>& tokens, const Rows& scores,
                                              Index count) {
  Vec all;  // by position, then head
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (const Vec& head : scores) {
      all.push_back(head[i]);
    }
  }
  std::vector<std::vector<Index>> out(scores.size());
  for (const Index at : top(all, count)) {
    const auto heads = static_cast<Index>(scores.size());
    out[static_cast<std::size_t>(at % heads)].push_back(
        tokens[static_cast<std::size_t>(at / heads)]);
  }
  return out;
}

bool is_top(const std::vector<Index>& tokens, const Vec& scores, const std::vector<Index>& kept,
            Index count, Real tolerance) {
  if (static_cast<Index>(kept.size()) != count) {
    return false;
  }
  bool any_kept = false;
  bool any_left = false;
  Real worst_kept = 0;
  Real best_left = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::find(kept.begin(), kept.end(), tokens[i]) != kept.end()) {
      worst_kept = any_kept ? std::min(worst_kept, scores[i]) : scores[i];
      any_kept = true;
    } else {
      best_left = any_left ? std::max(best_left, scores[i]) : scores[i];
      any_left = true;
    }
  }
  return !any_kept || !any_left ||
         best_left - worst_kept <= tolerance * std::max(std::abs(best_left), std::abs(worst_kept));
}

}  // namespace reference
