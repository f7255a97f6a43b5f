#include "attention/scores.hpp"

#include <algorithm>
#include <numeric>

#include "attention/query_block.hpp"

namespace kvbench {
namespace {

template <class T>
void add_sums(const KvHead& head, Index g, Range queries, std::vector<double>& sums) {
  QueryBlock<T> block;
  block.reserve(std::min(kQueryBlock, queries.size()), queries.end);
  std::vector<Index> positions;
  for (Index q0 = queries.begin; q0 < queries.end; q0 += kQueryBlock) {
    positions.resize(std::min(kQueryBlock, queries.end - q0));
    std::iota(positions.begin(), positions.end(), q0);
    block.attend(head, g, positions, nullptr);
    block.add_columns(sums.data(), nullptr, 0.0);
  }
}

}  // namespace

std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries) {
  const Range held{std::max(queries.begin, head.q_start()), queries.end};
  std::vector<std::vector<double>> out(head.group(), std::vector<double>(head.n(), 0.0));
  for (Index g = 0; g < head.group(); ++g) {
    if (head.precision == Precision::float32) {
      add_sums<float>(head, g, held, out[g]);
    } else {
      add_sums<double>(head, g, held, out[g]);
    }
  }
  return out;
}

Index attention_sums_bytes(Precision precision, Index queries, Index n) {
  return query_block_bytes(precision, std::min(kQueryBlock, queries), n);
}

std::vector<double> reduce_group(const std::vector<std::vector<double>>& scores, Reduce reduce) {
  std::vector<double> out = scores.front();
  for (std::size_t g = 1; g < scores.size(); ++g) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = reduce == Reduce::max ? std::max(out[i], scores[g][i]) : out[i] + scores[g][i];
    }
  }
  if (reduce == Reduce::mean) {
    for (double& x : out) {
      x /= static_cast<double>(scores.size());
    }
  }
  return out;
}

}  // namespace kvbench
