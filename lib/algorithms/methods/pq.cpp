// pq: product quantization of the keys; each query reads the tokens with the largest products with
// the quantized keys.
// [1] Zhang et al., "PQCache: Product Quantization-based KVCache for Long Context LLM Inference",
//     SIGMOD 2025, arXiv:2407.12820, section 3.
// Keys in `parts` sub-vectors of equal width. Per part 2^6 centroids by k-means: k-means++ starts
// from the seed, then `rounds` rounds of assignment to the nearest (ties to the first) and means;
// an empty cluster keeps its centroid. Centroids are rounded to the trace's type, then keys take
// the nearest. Index: 6-bit codes, packed over the head, and centroids. Nearest: the largest <x, c>
// - |c|^2/2 in float32, means in float64. In: K [m, d], the evaluated queries. Time O(rounds m 64
// d), memory O(m (d + 64)).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/shared/ranked_reads.hpp"
#include "attention/inner_products.hpp"
#include "attention/kcenter.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"

namespace kvbench::method_pq {
namespace {

constexpr Index kCodeBits = 6;
constexpr Index kCentroids = Index{1} << kCodeBits;
constexpr Index kPartWidth = 16;
constexpr Index kRows = 512;  // keys at a time

Index parts_of(const Params& params, Index d) {
  if (!params.is_auto("parts")) {
    return params.integer("parts");
  }
  Index parts = std::max<Index>(1, d / kPartWidth);
  while (d % parts != 0) {
    --parts;
  }
  return parts;
}

std::map<std::string, std::string> resolve(const Params& params, const LayerFacts& l) {
  const Index parts = parts_of(params, l.d);
  if (parts > l.d || l.d % parts != 0) {
    throw InputError(
        fmt::format("pq: parts: got {}, expected a divisor of head_dim {}", parts, l.d));
  }
  return {{"parts", fmt::format("{}", parts)}};
}

// Sub-vectors [m, w] of one part of the keys.
Matrix part_of(const Task& task, Index part, Index width) {
  Matrix out(task.count(), width);
  for (Index i = 0; i < out.rows(); ++i) {
    const float* key = task.head.k.row(task.tokens[i]) + part * width;
    std::copy(key, key + width, out.row(i));
  }
  return out;
}

// k-means++: the first row at random, each further one with probability proportional to its squared
// distance to the nearest so far; where all are 0, the first row again.
Matrix start(const Matrix& x, Index count, RngStream& rng) {
  Matrix out(count, x.cols());
  std::vector<double> nearest(x.rows(), std::numeric_limits<double>::infinity());
  auto chosen = static_cast<Index>(rng.next_below(static_cast<std::uint64_t>(x.rows())));
  for (Index c = 0; c < count; ++c) {
    std::copy(x.row(chosen), x.row(chosen) + x.cols(), out.row(c));
    double total = 0.0;
    for (Index i = 0; i < x.rows(); ++i) {
      nearest[i] = std::min(nearest[i], squared_distance(x.row(i), out.row(c), x.cols()));
      total += nearest[i];
    }
    const double drawn = rng.next_uniform() * total;
    double sum = 0.0;
    chosen = 0;
    for (Index i = 0; i < x.rows() && total > 0.0; ++i) {
      if (nearest[i] > 0.0) {
        chosen = i;  // the last possible row, if rounding leaves the draw beyond the sum
        sum += nearest[i];
        if (sum > drawn) {
          break;
        }
      }
    }
  }
  return out;
}

// [m]: the nearest centroid of each row.
std::vector<Index> assign(const Matrix& x, const Matrix& centroids) {
  Matrix centroids_t, block, products;
  transpose(centroids, centroids_t);
  std::vector<float> half_squares;
  for (Index c = 0; c < centroids.rows(); ++c) {
    half_squares.push_back(static_cast<float>(0.5 * squared_norm(centroids.view().row_span(c))));
  }
  std::vector<Index> out;
  out.reserve(static_cast<std::size_t>(x.rows()));
  for (Index i0 = 0; i0 < x.rows(); i0 += kRows) {
    block.resize(std::min(kRows, x.rows() - i0), x.cols());
    std::copy(x.row(i0), x.row(i0) + block.rows() * block.cols(), block.data());
    inner_products(block, centroids_t, products);
    for (Index i = 0; i < block.rows(); ++i) {
      Index best = 0;
      float largest = -std::numeric_limits<float>::infinity();
      for (Index c = 0; c < centroids.rows(); ++c) {
        const float closeness = products.row(i)[c] - half_squares[c];
        if (closeness > largest) {
          largest = closeness;
          best = c;
        }
      }
      out.push_back(best);
    }
  }
  return out;
}

void set_means(const Matrix& x, std::span<const Index> codes, Matrix& centroids) {
  MatrixD sums(centroids.rows(), x.cols());
  std::vector<Index> counts(centroids.rows(), 0);
  for (Index i = 0; i < x.rows(); ++i) {
    ++counts[codes[i]];
    for (Index t = 0; t < x.cols(); ++t) {
      sums.row(codes[i])[t] += static_cast<double>(x.row(i)[t]);
    }
  }
  for (Index c = 0; c < centroids.rows(); ++c) {
    for (Index t = 0; t < x.cols() && counts[c] > 0; ++t) {
      centroids.row(c)[t] = static_cast<float>(sums.row(c)[t] / static_cast<double>(counts[c]));
    }
  }
}

std::unique_ptr<ReadIndex> open_reads(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index parts = parts_of(params, head.d());
  const Index width = head.d() / parts;
  const Index count = std::min(kCentroids, task.count());
  ScoredIndex index;
  index.made.resize(task.count(), head.d());
  RngStream rng = task.rng.stream("centroids");
  for (Index part = 0; part < parts; ++part) {
    const Matrix x = part_of(task, part, width);
    Matrix centroids = start(x, count, rng);
    std::vector<Index> codes;
    for (Index round = params.integer("rounds"); round > 0; --round) {
      std::vector<Index> next = assign(x, centroids);
      if (next == codes) {
        break;
      }
      codes = std::move(next);
      set_means(x, codes, centroids);
    }
    round_to(head.dtype, centroids.data(), centroids.rows() * centroids.cols());
    codes = assign(x, centroids);
    for (Index i = 0; i < task.count(); ++i) {
      const float* centroid = centroids.row(codes[i]);
      std::copy(centroid, centroid + width, index.made.row(i) + part * width);
    }
  }
  index.costs = {.entries = task.count(),
                 .entry_bytes = task.read_bytes(),
                 .index_bytes = (task.count() * parts * kCodeBits + 7) / 8 +
                                count * head.d() * bytes_per_element(head.dtype)};
  return ranked_reads(task, params, "tokens", std::move(index));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "pq";
  info.family = Family::retrieval;
  info.copies = 1;
  info.summary = "each query reads the tokens whose product-quantized keys give the largest logits";
  info.source = "Zhang et al., SIGMOD 2025, arXiv:2407.12820";
  info.departures = "k-means++ starts; the middle alone is quantized";
  info.params = {
      integer_param("tokens", "auto", 1, 1e12, "tokens",
                    "tokens of the middle that a query reads, in place of a budget"),
      integer_param("parts", "auto", 1, 1e6, "sub-vectors",
                    "sub-vectors of a key, a divisor of head_dim; auto: of 16 channels"),
      integer_param("rounds", "20", 1, 1e6, "rounds", "rounds of k-means; fewer if no key moves"),
      union_param()};
  info.sizes = {"tokens"};
  info.grid = {"parts=2,4,8", "union=group"};
  info.facts = [](const Params&) { return JobFacts{.random = true}; };
  info.resolve = resolve;
  return {.info = info, .open_reads = open_reads};
}

}  // namespace kvbench::method_pq
