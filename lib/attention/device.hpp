// One KV head in the memory of a device, and the heavy arithmetic on it there. Every function of
// this room that takes a `const DeviceHead*` runs on it where that is not null; what it returns
// keeps the function's own contract: selections are made from the same products in the same order,
// so walks, centres and gains come out the same to the bit; sums over tokens are in another fixed
// order and agree to rounding. Knows no method.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/delta_cover.hpp"
#include "attention/estimator.hpp"
#include "attention/eviction_stream.hpp"
#include "attention/exact.hpp"
#include "attention/facility_location.hpp"
#include "attention/kcenter.hpp"
#include "attention/merge_rows.hpp"
#include "attention/quantize.hpp"
#include "attention/retained_stream.hpp"
#include "attention/revive_stream.hpp"
#include "attention/softmax_balance.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Gains of facility location on a device: FacilityLocation's own arithmetic, on unit keys that it
/// hands over. Not thread-safe.
class DeviceCoverage {
 public:
  virtual ~DeviceCoverage() = default;
  virtual std::vector<std::int64_t> singletons() = 0;
  virtual void gains(std::span<const Index> candidates, std::span<std::int64_t> out) = 0;
  /// A += u; returns the gain.
  virtual std::int64_t add(Index u) = 0;
};

/// A head on a device. Thread-safe: jobs on one head run side by side.
/// Errors: IoError where the device fails or its memory does not suffice.
class DeviceHead {
 public:
  virtual ~DeviceHead() = default;

  virtual ExactAttention exact_attention(Index g, std::span<const Index> positions) const = 0;
  virtual MatrixD exact_probabilities(Index g, std::span<const Index> positions) const = 0;
  virtual std::vector<std::vector<double>> attention_sums(Range queries) const = 0;
  /// `queries` [m, d] in float64, times the scale.
  virtual PartialSums partial_sums(const MatrixD& queries, const SumPiece& piece) const = 0;
  /// What each list adds to the sums of its own queries (rows of `queries`, as above).
  virtual std::vector<PartialSums> list_sums(const MatrixD& queries,
                                             std::span<const ListPiece> lists) const = 0;
  /// `points`: the head's keys or values (by address), or any other rows.
  virtual KCenter k_center(MatrixView points, std::span<const Index> rows, Index k,
                           Index first) const = 0;
  /// `points`: the same.
  virtual Cover delta_cover(MatrixView points, std::span<const Index> rows, double delta,
                            Index max_clusters) const = 0;
  virtual WalkCounts balance_blocks(const BalanceBlocks& blocks, std::span<std::int8_t> signs,
                                    std::span<double> probability) const = 0;
  /// Whole streams (nq == n): what goes at each position, [n].
  virtual std::vector<Eviction> evictions(const EvictionRules& rules) const = 0;
  /// The token that leaves at each position, or -1, [n].
  virtual std::vector<Index> departures(const RetentionRules& rules) const = 0;
  /// A whole stream or prefill, the steps of which have the queries that they say.
  virtual ReviveLog revive(const ReviveRules& rules) const = 0;
  virtual std::vector<Index> most_similar(std::span<const Index> to,
                                          std::span<const Index> from) const = 0;
  virtual std::unique_ptr<DeviceCoverage> coverage(const UnitKeys& units, Index n,
                                                   Similarity kind) const = 0;
  /// Any number of scores, also fewer than kTopOnDevice.
  virtual std::vector<Index> top_places(std::span<const double> scores, Index count) const = 0;
  /// `from`, here and below: as `points` of k_center.
  virtual Matrix read_back(MatrixView from, std::span<const Index> tokens,
                           const CodeFormat& format) const = 0;
  virtual Matrix merge_rows(MatrixView from, const RowMerge& merge, DType type) const = 0;
};

/// What `--gpu-math` names.
enum class GpuMath {
  exact,  ///< selections from the CPU's products in its order, to the bit
  fast,   ///< products by tensor cores, about 22 bits each (fast_*.hpp)
};

/// What `--device` names.
struct DeviceChoice {
  bool cuda = false;
  int ordinal = 0;
  std::string text() const;  ///< "cpu" or "cuda:i", as rows say it
};

/// `cpu`, `cuda` (the first), `cuda:i`, or `auto` (cuda:0 where it can be used, else cpu). Throws
/// InputError for other texts; IoError where the device is absent or too old for this build, or
/// this build has no CUDA.
DeviceChoice choose_device(const std::string& text);

/// A CUDA device, for the manifest and for planning.
struct DeviceInfo {
  std::string model;
  std::string driver;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};
/// Throws IoError where there is none of that number.
DeviceInfo device_info(int ordinal);

/// Device memory that a head of these sizes takes, and that each job on it takes beside scratch
/// (unit keys in float64, two rows of logits per query head, and some numbers per token).
std::uint64_t device_head_bytes(Index n, Index d, Index dv, Index group, Index nq);
std::uint64_t device_job_bytes(Index n, Index d, Index group);

/// Arrays of scratch that one job has at a time, at most; each takes up to scratch_bytes.
inline constexpr Index kScratchArrays = 8;

/// Uploads a head, which must outlive the object. Its jobs' arrays of scratch keep to
/// `scratch_bytes` each. Throws IoError where memory does not suffice.
std::unique_ptr<DeviceHead> open_device_head(const KvHead& head, int ordinal,
                                             std::size_t scratch_bytes,
                                             GpuMath math = GpuMath::exact);

}  // namespace kvbench
