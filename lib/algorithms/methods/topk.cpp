// topk: each query reads the B tokens of the middle with its largest logits. The ceiling of what an
// index can find. Sees the evaluated queries, as every method of the retrieval protocol.
// In: K [m, d], the evaluated queries. Time O(group queries m d), memory O(group queries B).
#include "algorithms/shared/ranked_reads.hpp"

namespace kvbench::method_topk {
namespace {

std::unique_ptr<ReadIndex> open_reads(const Task& task, const Params& params) {
  ScoredIndex index;
  index.costs = {.entries = task.count(), .entry_bytes = task.read_bytes()};
  index.of = task.head.k;
  index.rows.assign(task.tokens.begin(), task.tokens.end());
  return ranked_reads(task, params, "tokens", std::move(index));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "topk";
  info.family = Family::retrieval;
  info.summary = "each query reads the tokens with its largest logits: what an index aims at";
  info.source = "kvbench";
  info.params = {integer_param("tokens", "auto", 1, 1e12, "tokens",
                               "tokens of the middle that a query reads, in place of a budget"),
                 union_param()};
  info.sizes = {"tokens"};
  info.grid = {"union=head,group"};
  return {.info = info, .open_reads = open_reads};
}

}  // namespace kvbench::method_topk
