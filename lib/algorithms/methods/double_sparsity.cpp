// double-sparsity: each query reads the tokens with its largest logits over a few channels, whose
// keys the index holds in few bits.
// [1] Yang et al., "Post-Training Sparse Attention with Double Sparsity", 2024, arXiv:2408.07092,
//     section 3.
// One set of `channels` channels per KV head: the largest mean |q_c| (over the scoring queries of
// all heads of the group) times mean |k_c| (over the task's tokens). Index: those channels of every
// key at `bits` bits, per token with a float16 minimum and step over its channels (quantize.hpp).
// The query is not quantized.
// In: K [m, d], the scoring and the evaluated queries. Time O(group queries m channels).
#include <algorithm>
#include <cmath>

#include "algorithms/shared/ranked_reads.hpp"
#include "attention/quantize.hpp"
#include "attention/scores.hpp"

namespace kvbench::method_double_sparsity {
namespace {

Index channels_of(const Params& params, Index d) {
  return params.is_auto("channels") ? std::max<Index>(1, d / 4)
                                    : std::min(d, params.integer("channels"));
}

// [d]: mean |x_c| over rows, in float64.
std::vector<double> mean_sizes(MatrixView of, std::span<const Index> rows) {
  std::vector<double> out(of.cols, 0.0);
  for (const Index i : rows) {
    for (Index c = 0; c < of.cols; ++c) {
      out[c] += std::abs(static_cast<double>(of.row(i)[c]));
    }
  }
  for (double& x : out) {
    x /= static_cast<double>(std::max<std::size_t>(1, rows.size()));
  }
  return out;
}

// Ascending.
std::vector<Index> largest_channels(const Task& task, Index count) {
  const KvHead& head = task.head;
  std::vector<Index> rows;  // of the scoring queries
  for (Index p = std::max(task.scoring.begin, head.q_start()); p < task.scoring.end; ++p) {
    rows.push_back(p - head.q_start());
  }
  std::vector<double> sizes(head.d(), 0.0);
  for (const Matrix& queries : head.q) {
    const std::vector<double> of_head = mean_sizes(queries, rows);
    for (std::size_t c = 0; c < sizes.size(); ++c) {
      sizes[c] += of_head[c] / static_cast<double>(head.group());
    }
  }
  const std::vector<double> of_keys = mean_sizes(head.k, task.tokens);
  for (std::size_t c = 0; c < sizes.size(); ++c) {
    sizes[c] *= of_keys[c];
  }
  return top_indices(sizes, count);
}

std::unique_ptr<ReadIndex> open_reads(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index width = channels_of(params, head.d());
  const int bits = static_cast<int>(params.integer("bits"));
  const std::vector<Index> channels = largest_channels(task, width);
  ScoredIndex index;
  index.made.resize(task.count(), width);
  for (Index i = 0; i < task.count(); ++i) {
    for (Index c = 0; c < width; ++c) {
      index.made.row(i)[c] = head.k.row(task.tokens[i])[channels[c]];
    }
  }
  read_back(index.made, {.bits = bits, .group = width, .along = GroupAlong::channels});
  index.costs = {.entries = task.count(),
                 .entry_bytes = task.read_bytes(),
                 .index_bytes = QuantizedRows::code_bytes(bits, task.count(), width, width) +
                                QuantizedRows::scale_bytes(task.count(), width, width)};
  index.queries = [&head, channels, m = task.evaluated.size()](Index g) {
    const MatrixD whole = scaled_queries(head, g, m);
    MatrixD out(m, static_cast<Index>(channels.size()));
    for (Index j = 0; j < m; ++j) {
      for (std::size_t c = 0; c < channels.size(); ++c) {
        out.row(j)[c] = whole.row(j)[channels[c]];
      }
    }
    return out;
  };
  return ranked_reads(task, params, "tokens", std::move(index));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "double-sparsity";
  info.family = Family::retrieval;
  info.summary =
      "each query reads the tokens with its largest logits over a few channels in few bits";
  info.source = "Yang et al., 2024, arXiv:2408.07092";
  info.departures =
      "channels are chosen on the prompt's own queries and keys (the paper: offline); the query is "
      "not quantized";
  info.params = {integer_param("tokens", "auto", 1, 1e12, "tokens",
                               "tokens of the middle that a query reads, in place of a budget"),
                 integer_param("channels", "auto", 1, 1e6, "channels",
                               "channels in the index; auto: a quarter of head_dim"),
                 choice_param("bits", {"4", "2", "3", "8"}, "bits of an element of the index"),
                 union_param()};
  info.sizes = {"tokens"};
  info.grid = {"channels=4,8,16;bits=2,4", "union=group"};
  info.facts = [](const Params&) { return JobFacts{.scoring = {Scoring()}}; };
  return {.info = info, .open_reads = open_reads};
}

}  // namespace kvbench::method_double_sparsity
