#include "cluster/study.hpp"

#include <algorithm>
#include <functional>
#include <iterator>

#include "cluster/pca.hpp"
#include "core/parallel.hpp"

namespace kvbench {
namespace {

using Task = std::function<void()>;

std::vector<double> absolute_deltas(const RowSet& points, const StudyOptions& o) {
  std::vector<double> out = o.deltas;
  if (!o.deltas_rel.empty()) {
    const double radius = coverage(points, 1, 1).curve.front().radius;
    std::ranges::transform(o.deltas_rel, std::back_inserter(out),
                           [&](double x) { return x * radius; });
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Points make_points(MatrixView rows, const std::vector<Index>& centers, const Pca& pca,
                   const StudyOptions& o) {
  Points out;
  out.tokens = spaced_tokens(rows.rows, o.max_points, centers);
  std::vector<bool> is_center(rows.rows, false);
  for (const Index center : centers) {
    is_center[center] = true;
  }
  for (const Index token : out.tokens) {
    out.is_center.push_back(is_center[token]);
  }
  if (o.components > 0) {
    out.x = project(pca, rows, out.tokens);
    return out;
  }
  out.x = Matrix(std::ssize(out.tokens), rows.cols);
  for (Index i = 0; i < out.x.rows(); ++i) {
    std::copy_n(rows.row(out.tokens[i]), rows.cols, out.x.row(i));
  }
  return out;
}

}  // namespace

std::vector<Index> spaced_tokens(Index n, Index count, std::span<const Index> always) {
  const Index spaced = count == 0 ? n : std::min(count, n);
  std::vector<Index> out(always.begin(), always.end());
  for (Index i = 0; i < spaced; ++i) {
    out.push_back(i * n / spaced);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Index point_columns(const StudyOptions& options, Index d) {
  return options.components > 0 ? std::min(options.components, d) : d;
}

StudyMemory study_memory(const StudyOptions& o, Index n, Index d) {
  const Index centers = std::min(o.centers, n);
  const Index shown = o.max_points == 0 ? n : std::min(n, std::min(n, o.max_points) + centers);
  const Index clusters = std::min(o.max_clusters, n);
  StudyMemory need;
  // Rows shown, with numbers and labels.
  need.result =
      static_cast<std::uint64_t>(o.points ? shown * (4 * point_columns(o, d) + 64) : Index{0});
  // Row numbers, with the largest of: k-center's nearest centres and distances; the rows' clusters
  // and representatives in a doubling vector; the covariance, its eigenvectors and a block.
  need.per_thread = static_cast<std::uint64_t>(
      std::max({24 * n + 16 * std::max(centers, std::min(n / 2, o.max_k)),
                16 * n + clusters * (12 * d + 16), 8 * (4 * d * d + 512 * d)}));
  return need;
}

std::optional<std::vector<Study>> study(std::span<const StudySet> sets, const StudyOptions& options,
                                        int threads, const std::atomic<bool>& stop) {
  std::vector<Study> out(sets.size());
  std::vector<Pca> axes(sets.size());
  // Longest first: the whole coverage curve, then the smallest deltas.
  std::vector<Task> tasks;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    tasks.emplace_back(
        [&, s] { out[s].coverage = coverage(*sets[s].rows, options.centers, options.max_k); });
  }
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const std::vector<double> deltas = absolute_deltas(*sets[s].rows, options);
    out[s].growth.resize(deltas.size());
    for (std::size_t i = 0; i < deltas.size(); ++i) {
      tasks.emplace_back([&, s, i, delta = deltas[i]] {
        out[s].growth[i] = delta_growth(*sets[s].rows, delta, options.max_clusters);
      });
    }
  }
  if (options.points && options.components > 0) {
    for (std::size_t s = 0; s < sets.size(); ++s) {
      tasks.emplace_back(
          [&, s] { axes[s] = principal_components(*sets[s].rows, options.components); });
    }
  }
  parallel_for(static_cast<Index>(tasks.size()), threads, stop, [&](Index i) { tasks[i](); });
  if (stop) {
    return std::nullopt;
  }
  for (std::size_t s = 0; options.points && s < sets.size(); ++s) {
    out[s].points = make_points(sets[s].points, out[s].coverage.centers, axes[s], options);
  }
  return out;
}

}  // namespace kvbench
