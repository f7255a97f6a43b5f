// Attention on a device, in the head's precision. The functions have the contracts of their
// namesakes on the CPU (attention/truth.hpp, scores.hpp, estimator.hpp).
//
// Both sum weights in float64, each in an order of its own: a sum of n terms agrees to about
// sqrt(n) 2^-53 of the sum of their absolute values. A token whose probability is that close to the
// threshold may be noticed by one and not by the other. The bits do not depend on the run or on
// scratch_bytes.
//
// Memory beside the head: queries are taken as many at a time as keep every array within
// scratch_bytes, but at least one, which takes n elements.
#pragma once

#include <span>
#include <vector>

#include "attention/estimator.hpp"
#include "attention/truth.hpp"
#include "gpu/head.cuh"

namespace kvbench::gpu {

ExactAttention exact_attention(const Head& head, Index g, std::span<const Index> positions);

MatrixD exact_probabilities(const Head& head, Index g, std::span<const Index> positions);

std::vector<std::vector<double>> attention_sums(const Head& head, Range queries);

/// sets[i] are added to sums[i]. Rows of the head are read from device memory; of other matrices
/// only the rows that a set names are uploaded.
void add_rows_to(const Head& head, std::span<SoftmaxSums> sums,
                 std::span<const std::vector<WeightedRows>> sets);

}  // namespace kvbench::gpu
