// kmeans: B centroids of the middle's keys, each with the mean key and the mean value of its
// members, and their count as weight. kvbench's own: what clustering is worth where a cluster may
// be held as its mean. [1] Lloyd, "Least squares quantization in PCM", IEEE Transactions on
//     Information Theory 28, 1982. [2] Gonzalez 1985 (attention/kcenter.hpp), for the start.
// The start is greedy k-center of B centres, the first the middle's first token. Then `iterations`
// times: every token goes to the nearest centroid, ties to the earlier; clusters that got no token
// are gone at once; centroids become their members' means. It ends earlier where no token moves,
// which changes nothing. Clusters are those of the last assignment; one of a single token is that
// token, held exactly.
// Distances come from differences in float64, never from |a|^2 + |b|^2 - 2<a,b>, whose digits
// cancel where keys share a large offset; their order of summation is kcenter's. Centroids are
// float64 until the end, then rounded once to the trace's element type, as values are.
//
// In: K [m, d], V [m, dv]. Out: at most B entries, a float32 weight each. No query is looked at.
// Time O((1 + iterations) m B d), memory O(B d) float64 and O(m).
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "algorithms/merged_means.hpp"
#include "algorithms/size.hpp"
#include "attention/kcenter.hpp"
#include "attention/similarity.hpp"

namespace kvbench {
namespace {

using Members = std::vector<std::vector<Index>>;  // positions of each cluster, ascending

// Row c is the mean key of members[c].
void take_means(MatrixView keys, const Members& members, MatrixD& centroids) {
  centroids.resize(static_cast<Index>(members.size()), keys.cols);
  for (std::size_t c = 0; c < members.size(); ++c) {
    double* mean = centroids.row(static_cast<Index>(c));
    std::fill_n(mean, keys.cols, 0.0);
    for (const Index i : members[c]) {
      for (Index t = 0; t < keys.cols; ++t) {
        mean[t] += static_cast<double>(keys.row(i)[t]);
      }
    }
    for (Index t = 0; t < keys.cols; ++t) {
      mean[t] /= static_cast<double>(members[c].size());
    }
  }
}

// Every token to its nearest centroid, ties to the earlier; clusters without a token are left out.
Members assign(MatrixView keys, std::span<const Index> tokens, const MatrixD& centroids) {
  Members out(static_cast<std::size_t>(centroids.rows()));
  for (const Index i : tokens) {
    double least = std::numeric_limits<double>::infinity();
    Index nearest = 0;
    for (Index c = 0; c < centroids.rows(); ++c) {
      const double squared = squared_distance(centroids.row(c), keys.row(i), keys.cols);
      if (squared < least) {
        least = squared;
        nearest = c;
      }
    }
    out[static_cast<std::size_t>(nearest)].push_back(i);
  }
  std::erase_if(out, [](const std::vector<Index>& list) { return list.empty(); });
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const Index count = tokens_to_keep(task, params, task.head.pair_bytes() + kCountBytes);
  const MatrixView keys = task.head.k;
  Members members;
  if (count > 0) {
    const KCenter start = k_center(keys, task.tokens, count, 0, task.device);
    for (const Index place : start.centers) {
      members.push_back({task.tokens[static_cast<std::size_t>(place)]});
    }
    MatrixD centroids;
    for (Index round = params.integer("iterations"); round > 0; --round) {
      take_means(keys, members, centroids);
      Members next = assign(keys, task.tokens, centroids);
      if (next == members) {
        break;
      }
      members = std::move(next);
    }
  }
  std::sort(members.begin(), members.end());  // by their first tokens: those held then ascend
  Compressed out = mean_of_each(task, members);
  out.aux_bytes = kCountBytes * static_cast<Index>(members.size());
  out.diag = {{"clusters", fmt::format("{}", members.size())},
              {"weight_sum", fmt::format("{}", count > 0 ? task.count() : 0)}};
  return out;
}

}  // namespace

Method method_kmeans() {
  MethodInfo info;
  info.name = "kmeans";
  info.summary = "means of k-means clusters of the keys, weighted by their counts";
  info.source = "kvbench";
  info.params = size_params();
  info.params.push_back(integer_param(
      "iterations", "10", 1, 1e6, "assignments",
      "assignments to the nearest centroid, means between them, from greedy k-center on; more come "
      "closer to a fixed point and take longer"));
  info.sizes = size_names();
  return {info, compress};
}

}  // namespace kvbench
