// Online clusters of keys: the clusters that ClusterGen keeps.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", Algorithm 1 (UpdateSoftmaxNormalizer) and Lemma B.3.
// A key joins the cluster whose representative (its first key) is nearest if that distance is at
// most delta. Otherwise it opens a cluster. Ties go to the earlier cluster. So representatives are
// more than delta apart, and every key lies within delta of its own. Distances are those of
// attention/kcenter.hpp, for representatives that float32 does not rule out
// (attention/float32_bounds.hpp); their correctly rounded square root is compared with delta.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// The clusters of a stream so far. Adding a key takes O(clusters d) time; memory O(clusters d).
class OnlineClusters {
 public:
  /// Keys of `d` channels; delta >= 0 (0: only equal keys share a cluster).
  OnlineClusters(Index d, double delta);

  struct Joined {
    Index cluster = 0;
    bool opened = false;    ///< by this key
    double distance = 0.0;  ///< to the nearest earlier representative; inf: there was none
  };

  Joined add(std::span<const float> key);

  Index clusters() const { return clusters_; }

 private:
  static constexpr Index kSide = 64;  // representatives whose float32 distances are summed together

  void open(std::span<const float> key);

  Index d_;
  double delta_;
  Index clusters_ = 0;
  AlignedVector<float> representatives_;  // [clusters, d]
  AlignedVector<float> transposed_;       // [clusters / kSide, d, kSide] the same, padded
  AlignedVector<float> rough_;            // [clusters] negated squared distances in float32
};

/// The clusters of a stream's rows, row by row.
class ClusterStream {
 public:
  virtual ~ClusterStream() = default;
  /// The cluster of the next row. Clusters are numbered in the order of opening.
  virtual Index next() = 0;
};

/// A whole stream's clusters.
struct Clusters {
  std::vector<Index> representatives;  ///< indices into `rows`, ascending: a prefix of the stream
                                       ///< has as many clusters as representatives
  std::vector<Index> cluster;          ///< [rows]
  /// Any delta' in [largest_join, smallest_open) gives the same clusters.
  double largest_join = 0.0;  ///< largest distance of a key that joined
  double smallest_open =
      std::numeric_limits<double>::infinity();  ///< smallest of a key that opened
  bool complete = true;  ///< false: stopped at the first key that needed one cluster too many; the
                         ///< other fields describe the keys up to it
};

/// Adds `rows` of `points`, in order, to OnlineClusters. Stops where more than `max_clusters` would
/// be needed. Time O(rows clusters d).
Clusters online_clusters(MatrixView points, std::span<const Index> rows, double delta,
                         Index max_clusters = std::numeric_limits<Index>::max());

/// Rows `rows` of `points`, which must outlive the stream. Clusters are computed row by row.
std::unique_ptr<ClusterStream> cluster_stream(MatrixView points, std::span<const Index> rows,
                                              double delta);

std::unique_ptr<ClusterStream> cluster_stream(Clusters known);

}  // namespace kvbench
