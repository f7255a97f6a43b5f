#include "cluster/study.hpp"

#include <algorithm>
#include <functional>

#include "attention/device_rows.hpp"
#include "cluster/pca.hpp"
#include "cluster/rows.hpp"
#include "core/parallel.hpp"

namespace kvbench {
namespace {

using Task = std::function<void()>;

std::vector<double> absolute_deltas(MatrixView points, const StudyOptions& o,
                                    const DeviceRows* device) {
  std::vector<double> out = o.deltas;
  if (!o.deltas_rel.empty()) {
    const double radius = coverage(points, 1, 1, device).curve.front().radius;
    for (const double x : o.deltas_rel) {
      out.push_back(x * radius);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Points make_points(MatrixView rows, const std::vector<Index>& centers, const Pca& pca,
                   const StudyOptions& o) {
  Points out;
  out.tokens = spaced_tokens(rows.rows, o.max_points, centers);
  std::vector<bool> is_center(static_cast<std::size_t>(rows.rows), false);
  for (const Index center : centers) {
    is_center[static_cast<std::size_t>(center)] = true;
  }
  for (const Index token : out.tokens) {
    out.is_center.push_back(is_center[static_cast<std::size_t>(token)]);
  }
  if (o.components > 0) {
    out.x = project(pca, rows, out.tokens);
    return out;
  }
  out.x = Matrix(static_cast<Index>(out.tokens.size()), rows.cols);
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    std::copy_n(rows.row(out.tokens[i]), rows.cols, out.x.row(static_cast<Index>(i)));
  }
  return out;
}

}  // namespace

Index point_columns(const StudyOptions& options, Index d) {
  return options.components > 0 ? std::min(options.components, d) : d;
}

StudyMemory study_memory(const StudyOptions& o, Index n, Index d) {
  const Index centers = std::min(o.centers, n);
  const Index shown = o.max_points == 0 ? n : std::min(n, std::min(n, o.max_points) + centers);
  const Index clusters = std::min(o.max_clusters, n);
  StudyMemory need;
  // Rows shown with their numbers and labels.
  need.result =
      static_cast<std::uint64_t>(o.points ? shown * (4 * point_columns(o, d) + 64) : Index{0});
  // Row numbers with either k-center's nearest centres and distances, or the clusters of rows and
  // their representatives in a vector that has doubled; or the covariance, its vectors and a block.
  need.per_thread = static_cast<std::uint64_t>(
      std::max({24 * n + 16 * std::max(centers, std::min(n / 2, o.max_k)),
                16 * n + clusters * (12 * d + 16), 8 * (4 * d * d + 512 * d)}));
  return need;
}

std::optional<std::vector<Study>> study(std::span<const MatrixView> sets,
                                        const StudyOptions& options, int threads,
                                        const std::atomic<bool>& stop,
                                        std::span<const std::unique_ptr<DeviceRows>> devices) {
  const auto device = [&](std::size_t s) { return devices.empty() ? nullptr : devices[s].get(); };
  std::vector<Study> out(sets.size());
  std::vector<Pca> axes(sets.size());
  // The longest first: the whole coverage curve, then the smallest deltas.
  std::vector<Task> tasks;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    tasks.emplace_back(
        [&, s] { out[s].coverage = coverage(sets[s], options.centers, options.max_k, device(s)); });
  }
  for (std::size_t s = 0; s < sets.size(); ++s) {
    const std::vector<double> deltas = absolute_deltas(sets[s], options, device(s));
    out[s].growth.resize(deltas.size());
    for (std::size_t i = 0; i < deltas.size(); ++i) {
      tasks.emplace_back([&, s, i, delta = deltas[i]] {
        out[s].growth[i] = delta_growth(sets[s], delta, options.max_clusters, device(s));
      });
    }
  }
  if (options.points && options.components > 0) {
    for (std::size_t s = 0; s < sets.size(); ++s) {
      tasks.emplace_back(
          [&, s] { axes[s] = principal_components(sets[s], options.components, device(s)); });
    }
  }
  parallel_for(static_cast<Index>(tasks.size()), threads, stop,
               [&](Index i) { tasks[static_cast<std::size_t>(i)](); });
  if (stop) {
    return std::nullopt;
  }
  for (std::size_t s = 0; options.points && s < sets.size(); ++s) {
    out[s].points = make_points(sets[s], out[s].coverage.centers, axes[s], options);
  }
  return out;
}

}  // namespace kvbench
