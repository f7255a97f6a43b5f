// quest: tokens in pages; a query reads whole pages, in the order of an upper bound of the logits
// in them.
// [1] Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML
//     2024, arXiv:2406.10774, section 3.3, algorithm 1.
// [2] Its evaluation code, mit-han-lab/quest, evaluation/quest_attention.py.
// Pages of `page` tokens from the middle's first token on. Index: the minimum and maximum of each
// channel over the page's keys, at the trace's type. Score of a page: sum over channels of
// max(q_c min_c, q_c max_c), an inner product of (q+, q-) with (max, min).
// In: K [m, d], the evaluated queries. Out: per query, whole pages. Time O(m d + group queries
// m/page d).
#include <algorithm>

#include "algorithms/shared/page_bounds.hpp"
#include "algorithms/shared/ranked_reads.hpp"

namespace kvbench::method_quest {
namespace {

constexpr std::string_view kSize = "pages";

// [queries, 2 d]: the positive, then the negative parts of the scaled queries.
MatrixD signed_parts(const MatrixD& queries) {
  MatrixD out(queries.rows(), 2 * queries.cols());
  for (Index j = 0; j < queries.rows(); ++j) {
    for (Index c = 0; c < queries.cols(); ++c) {
      out.row(j)[c] = std::max(queries.row(j)[c], 0.0);
      out.row(j)[queries.cols() + c] = std::min(queries.row(j)[c], 0.0);
    }
  }
  return out;
}

std::unique_ptr<ReadIndex> open_reads(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index page = params.integer("page");
  const Index pages = (task.count() + page - 1) / page;
  ScoredIndex index;
  index.costs = {.entries = pages,
                 .page = page,
                 .entry_bytes = page * task.read_bytes(),
                 .index_bytes = pages * 2 * head.d() * bytes_per_element(head.dtype),
                 .least = params.integer("min_pages")};
  index.made = page_extremes(head.k, task.tokens, page);
  index.queries = [&head, m = task.evaluated.size()](Index g) {
    return signed_parts(scaled_queries(head, g, m));
  };
  return ranked_reads(task, params, kSize, std::move(index));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "quest";
  info.family = Family::retrieval;
  info.summary = "each query reads whole pages, by a bound of the logits in them";
  info.source = "Tang et al., ICML 2024, arXiv:2406.10774; mit-han-lab/quest";
  info.departures =
      "pages begin at the middle's first token; every layer retrieves (the paper leaves the first "
      "two whole)";
  info.params = {integer_param("pages", "auto", 1, 1e12, "pages",
                               "pages of the middle that a query reads, in place of a budget"),
                 integer_param("page", "16", 1, 1e6, "tokens",
                               "tokens of a page; larger makes a smaller index and coarser reads"),
                 integer_param("min_pages", "3", 1, 1e6, "pages",
                               "fewest pages of a query; a budget below them is infeasible"),
                 union_param()};
  info.sizes = {std::string(kSize)};
  info.grid = {"page=8,16,32,64", "union=group"};
  return {.info = info, .open_reads = open_reads};
}

}  // namespace kvbench::method_quest
