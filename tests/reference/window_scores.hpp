// Slow references of triattention, defensivekv and dropkv, from their definitions.
#pragma once

#include "reference/leverage.hpp"

namespace reference {

/// defensivekv's s and mean attention of `tokens`, from the queries at positions [begin, end).
struct Defended {
  Vec s, mean;
};

// Mean over the positions around tokens[i], each looked up among the tokens.
inline Vec pooled(const Vec& x, const std::vector<Index>& tokens, Index kernel) {
  Vec out;
  for (const Index centre : tokens) {
    Real sum = 0;
    for (Index at = centre - kernel / 2; at <= centre + kernel / 2; ++at) {
      const auto found = std::find(tokens.begin(), tokens.end(), at);
      sum += found == tokens.end() ? 0 : x[static_cast<std::size_t>(found - tokens.begin())];
    }
    out.push_back(sum / static_cast<Real>(kernel));
  }
  return out;
}

inline Real total(const Vec& x) {
  Real sum = 0;
  for (const Real y : x) {
    sum += y;
  }
  return sum;
}

/// triattention's scores of `tokens`: un-rotated by cos, sin [p, pairs], frequencies w [pairs] and
/// amplitude r; the queries at positions [begin, end); offsets counted from `start`; every cosine
/// written out.
inline Vec triattention(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                        Index end, const kvbench::Matrix& cos, const kvbench::Matrix& sin,
                        bool half, const Vec& w, Real r, Index start, Index max_offset,
                        bool largest, ReferenceReduce reduce) {
  const std::size_t pairs = w.size();
  const auto first = [&](std::size_t f) { return half ? f : 2 * f; };
  const auto second = [&](std::size_t f) { return half ? f + pairs : 2 * f + 1; };
  const Rows keys = unrotated(head, tokens, cos, sin, half);
  Rows per_head;
  for (const kvbench::Matrix& q : head.q) {
    Vec re(pairs, 0), im(pairs, 0), length(pairs, 0);
    for (Index j = begin; j < end; ++j) {
      const Vec stored = rows_at(q, {j - head.q_start()})[0];
      const Vec x = before_rotation(stored, j, cos, sin, half);
      for (std::size_t f = 0; f < pairs; ++f) {
        re[f] += x[first(f)] / static_cast<Real>(end - begin);
        im[f] += x[second(f)] / static_cast<Real>(end - begin);
        length[f] += std::hypot(x[first(f)], x[second(f)]) / static_cast<Real>(end - begin);
      }
    }
    Vec scores;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Vec at_offsets;
      for (Index o = 1; o <= max_offset; o *= 2) {
        Real score = 0;
        for (std::size_t f = 0; f < pairs; ++f) {
          const Real k = std::hypot(keys[i][first(f)], keys[i][second(f)]);
          const Real e = std::hypot(re[f], im[f]);
          const Real angle =
              std::atan2(im[f], re[f]) - std::atan2(keys[i][second(f)], keys[i][first(f)]);
          const auto distance = static_cast<Real>(start - tokens[i] + o);
          score += r * r * (e * k * std::cos(w[f] * distance + angle) + (length[f] - e) * k);
        }
        at_offsets.push_back(score);
      }
      scores.push_back(largest ? *std::max_element(at_offsets.begin(), at_offsets.end())
                               : total(at_offsets) / static_cast<Real>(at_offsets.size()));
    }
    per_head.push_back(scores);
  }
  return reduced(per_head, reduce);
}

inline Defended defended(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                         Index end, Index kernel) {
  Defended out{Vec(tokens.size(), 0), Vec(tokens.size(), 0)};
  for (Index g = 0; g < head.group(); ++g) {
    for (Index j = begin; j < end; ++j) {
      const Vec p = attention(head, g, j).p;
      Vec row;
      for (const Index i : tokens) {
        row.push_back(p[static_cast<std::size_t>(i)]);
      }
      const Vec smooth = pooled(row, tokens, kernel);
      for (std::size_t i = 0; i < row.size(); ++i) {
        const Real scaled = total(smooth) > 0 ? smooth[i] / total(smooth) * total(row) : 0;
        out.s[i] = std::max(out.s[i], scaled);
        out.mean[i] += row[i] / static_cast<Real>(head.group() * (end - begin));
      }
    }
  }
  const Real mean = total(out.s) / static_cast<Real>(tokens.size());
  for (Real& x : out.s) {
    x = std::max(x, mean);
  }
  return out;
}

/// How many tokens come first: those before the one at which the cumulative share of `mean`,
/// largest first, reaches `first_mass`.
inline Index first_count(const Vec& mean, Real first_mass) {
  Vec sorted = mean;
  std::sort(sorted.rbegin(), sorted.rend());
  Real mass = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    mass += sorted[i] / total(mean);
    if (mass >= first_mass) {
      return static_cast<Index>(i);
    }
  }
  return 0;
}

/// dropkv's scores of `tokens`: each query's output computed anew without each token, where the
/// weight 1 - p of the others is 1 - p + epsilon; pooled over `kernel` positions.
inline Vec dropkv(const kvbench::KvHead& head, const std::vector<Index>& tokens, Index begin,
                  Index end, Real epsilon, Index kernel, ReferenceReduce reduce) {
  const Rows values = rows_of(head.v);
  Rows per_head;
  for (Index g = 0; g < head.group(); ++g) {
    Vec changes(tokens.size(), 0);
    for (Index j = begin; j < end; ++j) {
      const Attention a = attention(head, g, j);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto dropped = static_cast<std::size_t>(tokens[i]);
        // (o - p v) / (1 - p + epsilon) less o, but for epsilon's part of o.
        for (std::size_t c = 0; c < a.out.size(); ++c) {
          Real others = 0;
          for (std::size_t t = 0; t < a.p.size(); ++t) {
            others += t == dropped ? 0 : a.p[t] * values[t][c];
          }
          const Real kept = 1 - a.p[dropped];
          const Real change = (others - kept * a.out[c]) / (kept + epsilon);
          changes[i] += change * change;
        }
      }
    }
    per_head.push_back(changes);
  }
  return pooled(reduced(per_head, reduce), tokens, kernel);
}

}  // namespace reference
