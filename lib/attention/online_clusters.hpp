// Online clusters of keys: the clusters that ClusterGen keeps.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", Algorithm 1 (UpdateSoftmaxNormalizer) and Lemma B.3.
// A key joins the cluster whose representative (its first key) is nearest, if that distance is at
// most delta, a distance equal to delta included; otherwise it opens a cluster. Ties of the nearest
// go to the earlier cluster. So representatives are more than delta apart, and every key lies
// within delta of its own. Distances are those of attention/kcenter.hpp: float64, from differences,
// of the representatives that float32 does not rule out (attention/float32_bounds.hpp); what is
// compared with delta is their correctly rounded square root. Knows no method.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// The clusters of a stream so far. One key costs O(clusters d) time; memory O(clusters d).
class OnlineClusters {
 public:
  /// Keys of `d` channels; delta >= 0 (0: equal keys alone share a cluster).
  OnlineClusters(Index d, double delta);

  /// Where a key went.
  struct Joined {
    Index cluster = 0;
    bool opened = false;    ///< it is the first of its cluster
    double distance = 0.0;  ///< to the nearest representative that was there; inf if none was
  };

  /// The next key of the stream.
  Joined add(std::span<const float> key);

  Index clusters() const { return clusters_; }

 private:
  static constexpr Index kSide = 64;  // representatives whose rough distances are summed together

  void open(std::span<const float> key);

  Index d_;
  double delta_;
  Index clusters_ = 0;
  AlignedVector<float> representatives_;  // [clusters, d]
  AlignedVector<float> transposed_;       // [clusters / kSide, d, kSide] the same; the last padded
  AlignedVector<float> rough_;            // [clusters] less squared distances in float32
};

/// The clusters of a stream's rows, one row after another.
class ClusterStream {
 public:
  virtual ~ClusterStream() = default;
  /// Of the next row. Clusters are numbered as they open.
  virtual Index next() = 0;
};

/// Bytes that OnlineClusters holds for `clusters` clusters; its arrays grow by doubling.
Index online_clusters_bytes(Index d, Index clusters);

/// A whole stream's clusters.
struct Clusters {
  std::vector<Index> representatives;  ///< places in `rows`, ascending: m over a prefix of the
                                       ///< stream is how many of them lie in it
  std::vector<Index> cluster;          ///< [rows] the cluster of each
  /// Any delta' in [largest_join, smallest_open) does the same.
  double largest_join = 0.0;                                       ///< largest distance that joined
  double smallest_open = std::numeric_limits<double>::infinity();  ///< smallest that opened
  bool complete = true;  ///< false: stopped at the first key that needed one cluster too many, and
                         ///< the fields above are those of the keys up to it
};

/// Runs `rows` of `points`, in their order, through OnlineClusters; stops where more than
/// `max_clusters` would be needed. Time O(rows clusters d).
Clusters online_clusters(MatrixView points, std::span<const Index> rows, double delta,
                         Index max_clusters = std::numeric_limits<Index>::max());

/// Rows `rows` of `points`, which must outlive the stream, by OnlineClusters; decides nothing
/// ahead.
std::unique_ptr<ClusterStream> cluster_stream(MatrixView points, std::span<const Index> rows,
                                              double delta);

/// A stream whose clusters are known.
std::unique_ptr<ClusterStream> cluster_stream(Clusters known);

}  // namespace kvbench
