// Attention on a device, with the contracts of the CPU's functions (attention/truth.hpp,
// scores.hpp, estimator.hpp). Sums over n float64 weights have an order of their own: they agree
// with the CPU's to about sqrt(n) 2^-53 of the sum of absolute values, so a token with a
// probability that close to the threshold may be noticed by one only. Bits do not depend on the run
// or on scratch_bytes. Memory beside the head: as many queries at a time as keep every array within
// scratch_bytes, at least one, which takes n elements (with values the larger of n and n dv / 256).
#pragma once

#include <span>
#include <vector>

#include "attention/estimator.hpp"
#include "attention/truth.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

ExactAttention exact_attention(const DeviceHead& head, Index g, std::span<const Index> positions);

MatrixD exact_probabilities(const DeviceHead& head, Index g, std::span<const Index> positions);

std::vector<std::vector<double>> attention_sums(const DeviceHead& head, Range queries);

/// Adds sets[i] to sums[i]. Rows of the head are read from device memory; of other matrices only
/// the named rows are uploaded.
void add_rows_to(const DeviceHead& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets);

}  // namespace kvbench::gpu
