#include "attention/kcenter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "attention/float32_bounds.hpp"
#include "attention/inner_products.hpp"
#include "core/shared_work.hpp"

namespace kvbench {
namespace {

constexpr Index kLanes = kDistanceLanes;

template <class T>
double distance2(const T* a, const float* b, Index d) {
  double acc[kLanes] = {};
  Index t = 0;
  for (; t + kLanes <= d; t += kLanes) {
#pragma omp simd
    for (Index l = 0; l < kLanes; ++l) {
      acc[l] = add_square(static_cast<double>(a[t + l]), b[t + l], acc[l]);
    }
  }
  for (Index l = 0; t < d; ++t, ++l) {
    acc[l] = add_square(static_cast<double>(a[t]), b[t], acc[l]);
  }
  return sum_of_lanes(acc);
}

constexpr Index kWorkOfPart = Index{1} << 21;  // differences; a thread starts in that time
constexpr Index kTogether = 4;  // centres whose distances to a row are summed together

// float32 squared distances of `centers` [kTogether, d] and one row.
void rough_distances2(const float* centers, const float* row, Index d, float* out) {
  constexpr Index kSide = 16;
  float acc[kTogether][kSide] = {};
  Index t = 0;
  for (; t + kSide <= d; t += kSide) {
    for (Index c = 0; c < kTogether; ++c) {
#pragma omp simd
      for (Index l = 0; l < kSide; ++l) {
        const float x = centers[c * d + t + l] - row[t + l];
        acc[c][l] = std::fma(x, x, acc[c][l]);
      }
    }
  }
  for (Index l = 0; t < d; ++t, ++l) {
    for (Index c = 0; c < kTogether; ++c) {
      const float x = centers[c * d + t] - row[t];
      acc[c][l] = std::fma(x, x, acc[c][l]);
    }
  }
  for (Index c = 0; c < kTogether; ++c) {
    for (Index width = kSide / 2; width > 0; width /= 2) {
#pragma omp simd
      for (Index l = 0; l < width; ++l) {
        acc[c][l] += acc[c][l + width];
      }
    }
    out[c] = acc[c][0];
  }
}

// Rows that may become the next centres. Their farthest is the farthest of all rows while it is
// farther than the farthest other row was at the start.
constexpr std::size_t kCandidates = 64;

struct Candidate {
  double squared;
  std::size_t row;  // index in `rows`

  bool before(const Candidate& o) const {
    return squared > o.squared || (squared == o.squared && row < o.row);
  }
};

// The kCandidates + 1 farthest rows, the farthest first; ties in ascending order.
std::vector<Candidate> farthest_rows(std::span<const double> squared) {
  const auto by_order = [](const Candidate& a, const Candidate& b) { return a.before(b); };
  std::vector<Candidate> heap;  // the front is the nearest
  for (std::size_t i = 0; i < squared.size(); ++i) {
    if (heap.size() <= kCandidates) {
      heap.push_back({squared[i], i});
      std::push_heap(heap.begin(), heap.end(), by_order);
    } else if (squared[i] > heap.front().squared) {
      std::pop_heap(heap.begin(), heap.end(), by_order);
      heap.back() = {squared[i], i};
      std::push_heap(heap.begin(), heap.end(), by_order);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), by_order);
  return heap;
}

// The next centres, at most `count`, without a pass over all rows. Distances to the nearest centre
// never grow, so a candidate before the first other row stays before it. No row that equals a
// centre is returned.
std::vector<Index> next_centers(MatrixView points, std::span<const Index> rows,
                                const KCenter& found, std::size_t count) {
  std::vector<Candidate> candidates = farthest_rows(found.squared);
  Candidate bound{-1.0, 0};  // all rows are candidates
  if (candidates.size() > kCandidates) {
    bound = candidates.back();
    candidates.pop_back();
  }
  std::vector<Index> next;
  while (next.size() < count) {
    const auto first =
        std::min_element(candidates.begin(), candidates.end(),
                         [](const Candidate& a, const Candidate& b) { return a.before(b); });
    if (first == candidates.end() || !first->before(bound) || first->squared <= 0.0) {
      break;
    }
    next.push_back(static_cast<Index>(first->row));
    const float* center = points.row(rows[first->row]);
    for (Candidate& c : candidates) {
      c.squared = std::min(c.squared, distance2(center, points.row(rows[c.row]), points.cols));
    }
  }
  return next;
}

// Adds centres. A row that is strictly nearer to one than to all before it joins that centre. One
// pass over the rows, since they come from memory.
void admit(MatrixView points, std::span<const Index> rows, std::span<const Index> next,
           KCenter& out) {
  const Index d = points.cols;
  const auto count = static_cast<Index>(next.size());
  const auto number = static_cast<Index>(out.centers.size());
  Matrix centers(count + kTogether - 1, d);  // padded to whole groups
  for (Index c = 0; c < count; ++c) {
    std::copy_n(points.row(rows[next[c]]), d, centers.row(c));
  }
  std::vector<double> reached(next.size(), -1.0);  // largest squared distance after each
  std::mutex mutex;
  const auto total = static_cast<Index>(rows.size());
  const Index of_part = std::max<Index>(256, kWorkOfPart / std::max<Index>(1, count * d));
  share_work((total + of_part - 1) / of_part, [&](Index part) {
    std::vector<double> farthest(next.size(), -1.0);
    for (Index i = part * of_part; i < std::min(total, (part + 1) * of_part); ++i) {
      const float* row = points.row(rows[i]);
      double squared = out.squared[i];
      float limit = farther_above(squared, d);
      for (Index c0 = 0; c0 < count; c0 += kTogether) {
        float rough[kTogether];
        rough_distances2(centers.row(c0), row, d, rough);
        for (Index c = c0; c < std::min(count, c0 + kTogether); ++c) {
          if (!(rough[c - c0] > limit)) {
            const double x = distance2(centers.row(c), row, d);
            if (x < squared) {
              squared = x;
              limit = farther_above(squared, d);
              out.nearest[i] = number + c;
            }
          }
          farthest[c] = std::max(farthest[c], squared);
        }
      }
      out.squared[i] = squared;
    }
    const std::lock_guard lock(mutex);
    for (std::size_t c = 0; c < reached.size(); ++c) {
      reached[c] = std::max(reached[c], farthest[c]);
    }
  });
  for (Index c = 0; c < count; ++c) {
    out.centers.push_back(next[c]);
    out.nearest[next[c]] = number + c;
    out.radius.push_back(std::sqrt(reached[c]));
  }
}

}  // namespace

double squared_distance(const double* a, const float* b, Index d) {
  return distance2(a, b, d);
}

double squared_distance(const float* a, const float* b, Index d) {
  return distance2(a, b, d);
}

KCenter k_center(MatrixView points, std::span<const Index> rows, Index k, Index first) {
  const std::size_t m = rows.size();
  const auto count = static_cast<std::size_t>(std::clamp<Index>(k, 0, static_cast<Index>(m)));
  KCenter out;
  out.nearest.assign(m, 0);
  out.squared.assign(m, std::numeric_limits<double>::infinity());
  if (count > 0) {
    admit(points, rows, {&first, 1}, out);
  }
  while (out.centers.size() < count && out.radius.back() > 0.0) {
    admit(points, rows, next_centers(points, rows, out, count - out.centers.size()), out);
  }
  admit_lowest(out, count);
  return out;
}

void admit_lowest(KCenter& out, std::size_t count) {
  if (out.centers.size() >= count) {
    return;
  }
  std::vector<bool> chosen(out.nearest.size(), false);
  for (const Index c : out.centers) {
    chosen[c] = true;
  }
  for (std::size_t i = 0; i < chosen.size() && out.centers.size() < count; ++i) {
    if (!chosen[i]) {
      out.nearest[i] = static_cast<Index>(out.centers.size());
      out.centers.push_back(static_cast<Index>(i));
      out.radius.push_back(0.0);
    }
  }
}

Index farthest_from_mean(MatrixView points, std::span<const Index> rows) {
  const std::vector<double> mean = mean_row(points, rows);
  double largest = -1.0;
  std::size_t farthest = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double x = distance2(mean.data(), points.row(rows[i]), points.cols);
    if (x > largest) {
      largest = x;
      farthest = i;
    }
  }
  return static_cast<Index>(farthest);
}

}  // namespace kvbench
