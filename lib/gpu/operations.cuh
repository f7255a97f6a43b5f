// The operations of a head on a device. Each has the contract of the CPU's function, in
// lib/attention under the same name.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attention/estimator.hpp"
#include "attention/facility_location.hpp"
#include "attention/softmax_balance.hpp"
#include "attention/streams.hpp"
#include "attention/truth.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

// attention/truth.hpp, scores.hpp, estimator.hpp. Sums over n float64 weights have an order of
// their own: they agree with the CPU's to about sqrt(n) 2^-53 of the sum of absolute values, so a
// token with a probability that close to the threshold may be noticed by one only. Bits do not
// depend on the run or on scratch_bytes. Memory beside the head: as many queries at a time as keep
// every array within scratch_bytes, at least one, which takes n elements (with values the larger of
// n and n dv / 256).

ExactAttention exact_attention(const DeviceHead& head, Index g, std::span<const Index> positions);

MatrixD exact_probabilities(const DeviceHead& head, Index g, std::span<const Index> positions);

std::vector<std::vector<double>> attention_sums(const DeviceHead& head, Range queries);

/// Adds sets[i] to sums[i]. Rows of the head are read from device memory; of other matrices only
/// the named rows are uploaded.
void add_rows_to(const DeviceHead& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets);

/// Returns the CPU's signs, probabilities and counts. Runs on the CPU for blocks of more than 4096
/// tokens, or fewer than 64, where launches take longer than the walk. Memory: two arrays of
/// block^2 elements of the head's precision per block walked at once, within the scratch unless one
/// block exceeds it, and some numbers per token.
WalkCounts balance_blocks(const DeviceHead& head, const BalanceBlocks& blocks,
                          std::span<std::int8_t> signs, std::span<double> probability);

/// Gains over M = keys of `ground`, equal to the CPU's. Similarities are recomputed on every call;
/// 256 candidates at a time are most efficient. The head must outlive it. Memory: 8 bytes per
/// element of M, and 20 per key.
std::unique_ptr<FacilityGains> facility_location(const DeviceHead& head,
                                                 std::span<const Index> ground, Similarity kind);

/// Returns the CPU's places. Memory beside the head: 16 bytes per token of `to`; per token of
/// `from` 8, and 16 for each 64 tokens of `to`, up to 264.
std::vector<Index> nearest_keys(const DeviceHead& head, std::span<const Index> to,
                                std::span<const Index> from);

// Streams: opening one runs all its positions in one launch of one block; steps return the
// decisions.

std::unique_ptr<EvictionStream> evictions(const DeviceHead& head, const EvictionRules& rules);

/// Runs on the CPU if importance needs a phi other than the logarithm, whose bits a device would
/// not share.
std::unique_ptr<RetentionStream> retention(const DeviceHead& head, const RetentionRules& rules);

/// Runs all steps of the task at once, in one thread block. The result holds the decisions and no
/// reference to the arguments. Memory: keys as attended 4 n d, logits 8 group n, the sketch's keys
/// 4 rows cells d, about 40 n more. Throws IoError if the device fails or its memory does not
/// suffice.
std::unique_ptr<ReviveStream> revive(const DeviceHead& head, const ReviveTask& task);

}  // namespace kvbench::gpu
