// kmeans: centroids of the middle's keys, each with the mean key and value of its members, and
// their count as weight. kvbench's own.
// [1] Lloyd, "Least squares quantization in PCM", IEEE Transactions on Information Theory 28, 1982.
// [2] Gonzalez 1985 (attention/kcenter.hpp), for the start.
// Starts at the B centres of greedy k-center, the first the middle's first token. Then `iterations`
// times: every token joins the nearest centroid (ties to the earlier), empty clusters are removed,
// and centroids become means; stops early when no token moves. A cluster of one token is held
// exactly. Distances are kcenter's, by differences; float32 products only exclude what is farther
// beyond rounding. Centroids are float64 until one rounding to the trace's type.
// In: K [m, d], V [m, dv]. Out: at most B entries, a float32 weight each. Reads no query.
// Time O((1 + iterations) m B d), memory O(B d) float64 and O(m).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "algorithms/shared/merged_means.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/float32_bounds.hpp"
#include "attention/inner_products.hpp"
#include "attention/kcenter.hpp"
#include "core/shared_work.hpp"

namespace kvbench::method_kmeans {
namespace {

using Members = std::vector<std::vector<Index>>;  // positions of each cluster, ascending

// Row c is the mean key of members[c].
void compute_means(MatrixView keys, const Members& members, MatrixD& centroids) {
  centroids.resize(static_cast<Index>(members.size()), keys.cols);
  for (std::size_t c = 0; c < members.size(); ++c) {
    std::ranges::copy(mean_row(keys, members[c]), centroids.row(static_cast<Index>(c)));
  }
}

// Assigns every token to its nearest centroid. float32 products of keys and centroids less the mean
// key select candidates (attention/float32_bounds.hpp), exact distances decide between those.
class Assignment {
 public:
  static constexpr std::size_t kRows = 128;  // tokens per block

  Assignment(MatrixView keys, std::span<const Index> tokens)
      : keys_(keys), tokens_(tokens), origin_(mean_row(keys, tokens)) {}

  // Members of each centroid, without empty clusters.
  Members operator()(const MatrixD& centroids) {
    set(centroids);
    std::vector<Index> nearest(tokens_.size());
    const auto parts = static_cast<Index>((tokens_.size() + kRows - 1) / kRows);
    struct Block {
      Matrix rows, products;
    };
    ScratchPool<Block> scratch;
    share_work(parts, [&](Index part) {
      auto mine = scratch.take();
      auto& [rows, products] = *mine;
      const std::size_t b = static_cast<std::size_t>(part) * kRows;
      const std::span<const Index> block = tokens_.subspan(b, std::min(kRows, tokens_.size() - b));
      rows.resize(static_cast<Index>(block.size()), keys_.cols);
      for (Index r = 0; r < rows.rows(); ++r) {
        less_origin(keys_.row(block[r]), rows.row(r));
      }
      inner_products(rows, centred_t_, products);
      for (Index r = 0; r < rows.rows(); ++r) {
        nearest[b + static_cast<std::size_t>(r)] =
            nearest_of(block[r], rows.row(r), products.row(r), centroids);
      }
      scratch.give(std::move(mine));
    });
    Members out(static_cast<std::size_t>(centroids.rows()));
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      out[nearest[i]].push_back(tokens_[i]);
    }
    std::erase_if(out, [](const std::vector<Index>& list) { return list.empty(); });
    return out;
  }

 private:
  void set(const MatrixD& centroids) {
    Matrix centred(centroids.rows(), centroids.cols());
    half_squares_.clear();
    longest_ = 0.0;
    for (Index c = 0; c < centred.rows(); ++c) {
      less_origin(centroids.row(c), centred.row(c));
      const double squared = square(centred.row(c));
      half_squares_.push_back(static_cast<float>(0.5 * squared));
      longest_ = std::max(longest_, std::sqrt(squared));
    }
    transpose(centred, centred_t_);
  }

  template <class T>
  void less_origin(const T* row, float* out) const {
    for (std::size_t t = 0; t < origin_.size(); ++t) {
      out[t] = static_cast<float>(static_cast<double>(row[t]) - origin_[t]);
    }
  }

  double square(const float* row) const {
    return squared_norm({row, static_cast<std::size_t>(keys_.cols)});
  }

  // |x - c|^2 = |x|^2 - 2 (<x, c> - |c|^2 / 2), both less the origin: the nearest has the largest
  // bracket. |x| |c| <= (|x| + |c|)^2 / 4 bounds the product; rounding x, c, the half square and
  // the difference adds less than ten roundings of that to the chain's.
  Index nearest_of(Index token, const float* row, float* products, const MatrixD& centroids) const {
    const std::span<float> bracket(products, half_squares_.size());
#pragma omp simd
    for (std::size_t c = 0; c < half_squares_.size(); ++c) {
      bracket[c] -= half_squares_[c];
    }
    const double reach = std::sqrt(square(row)) + longest_;
    const double error =
        rounding_of_float32(keys_.cols, 10) * 0.25 * reach * reach + vanishing(keys_.cols);
    double smallest = std::numeric_limits<double>::infinity();
    Index out = 0;
    visit_at_least(
        bracket, ruled_out_below(largest_of(bracket), error, reach * reach), [&](std::size_t c) {
          const double squared =
              squared_distance(centroids.row(static_cast<Index>(c)), keys_.row(token), keys_.cols);
          if (squared < smallest) {
            smallest = squared;
            out = static_cast<Index>(c);
          }
        });
    return out;
  }

  MatrixView keys_;
  std::span<const Index> tokens_;
  std::vector<double> origin_;  // [d]: the tokens' mean key
  Matrix centred_t_;
  std::vector<float> half_squares_;  // [centroids]
  double longest_ = 0.0;             // of the centroids, less the origin
};

Compressed compress(const Task& task, const Params& params) {
  const Index count = tokens_to_keep(task, params, task.head.pair_bytes() + kCountBytes);
  const MatrixView keys = task.head.k;
  Members members;
  if (count > 0) {
    const KCenter start =
        task.backend.rows(task.head, HeadRows::keys, task.tokens)->k_center(count);
    for (const Index place : start.centers) {
      members.push_back({task.tokens[place]});
    }
    MatrixD centroids;
    Assignment assign(keys, task.tokens);
    for (Index round = params.integer("iterations"); round > 0; --round) {
      compute_means(keys, members, centroids);
      Members next = assign(centroids);
      if (next == members) {
        break;
      }
      members = std::move(next);
    }
  }
  std::sort(members.begin(), members.end());  // by first token, so that held ones ascend
  Compressed out = mean_of_each(task, members);
  out.aux_bytes = kCountBytes * static_cast<Index>(members.size());
  out.diag = {{"clusters", fmt::format("{}", members.size())},
              {"weight_sum", fmt::format("{}", count > 0 ? task.count() : 0)}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "kmeans";
  info.family = Family::merging;
  info.copies = 2;
  info.summary = "means of k-means clusters of the keys, weighted by count";
  info.source = "kvbench";
  info.params = size_params({integer_param("iterations", "10", 1, 1e6, "assignments",
                                           "rounds of assignment after greedy k-center; larger "
                                           "comes closer to a fixed point and takes longer")});
  info.grid = {"iterations=1,3,10,30"};
  info.facts = [](const Params&) { return JobFacts{.weights = {kCountBytes, 0}}; };
  info.holds = Holds::unplaced;
  return {info, compress};
}

}  // namespace kvbench::method_kmeans
