#include "replay/query_head_sets.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace kvbench {
namespace {

// Keys and values of `head` with the queries of query head `g` only.
void select_queries(const KvHead& head, Index g, KvHead& out) {
  out.q = {head.q[g]};
  if (!head.sink_logit.empty()) {
    out.sink_logit = {head.sink_logit[g]};
  }
}

std::vector<ExtraSet> select_queries(std::span<const ExtraSet> sets, Index g) {
  std::vector<ExtraSet> out(sets.begin(), sets.end());
  for (ExtraSet& set : out) {
    for (ExtraSegment& segment : set.segments) {
      segment.q = {segment.q[g]};
    }
  }
  return out;
}

// Columns of query head `g` of `group` heads.
Matrix select_columns(const Matrix& o_proj, Index g, Index group) {
  const Index width = o_proj.cols() / group;
  Matrix out(o_proj.rows(), width);
  for (Index i = 0; i < out.rows(); ++i) {
    std::copy_n(o_proj.row(i) + g * width, width, out.row(i));
  }
  return out;
}

}  // namespace

std::vector<Compressed> compress_by_query_head(
    const Variant& variant, const Task& task,
    const std::function<std::span<const double>(Index)>& true_mass) {
  const Index group = task.head.group();
  KvHead head;
  head.k = task.head.k;
  head.v = task.head.v;
  head.scale = task.head.scale;
  head.window = task.head.window;
  head.dtype = task.head.dtype;
  head.precision = task.head.precision;
  std::vector<Compressed> out;
  for (Index g = 0; g < group; ++g) {
    select_queries(task.head, g, head);
    const ScoreBook book(head);
    const std::vector<ExtraSet> extra = select_queries(task.extra, g);
    const Matrix o_proj =
        task.o_proj == nullptr ? Matrix() : select_columns(*task.o_proj, g, group);
    Task own{.head = head,
             .tokens = task.tokens,
             .budget_bytes = task.budget_bytes,
             .scoring = task.scoring,
             .true_mass = {},
             .rng = g == 0 ? task.rng : task.rng.part(fmt::format("query head {}", g)),
             .scores = &book,
             .whole = false,  // its book ends with the job
             .retrieval_heads = task.retrieval_heads,
             .kv_head = task.kv_head,
             .fisher = task.fisher,
             .sink = task.sink,
             .rope = task.rope,
             .evaluated = task.evaluated,
             .o_proj = task.o_proj == nullptr ? nullptr : &o_proj,
             .extra = extra,
             .named_scores = task.named_scores};
    if (own.budget_bytes) {
      *own.budget_bytes /= group;
    }
    if (variant.sees_evaluated()) {
      own.true_mass = true_mass(g);
    }
    try {
      out.push_back(variant.compress(own));
    } catch (const Infeasible& e) {
      throw Infeasible(fmt::format("one of {} query heads: {}", group, e.what()),
                       e.needed_bytes() * group);
    }
  }
  return out;
}

MemoryFigures by_query_head(const std::vector<MemoryFigures>& all, Index own, const KvHead& head,
                            Index middle, std::optional<Index> seen) {
  Compressed whole;
  whole.payload_bytes = 0;
  for (const MemoryFigures& one : all) {
    *whole.payload_bytes += one.middle_bytes - one.aux_bytes;
    whole.aux_bytes += one.aux_bytes;
    whole.transient_bytes += one.transient_bytes;
  }
  MemoryFigures out = memory_figures(whole, head, middle, seen);
  out.tokens_kept = all[own].tokens_kept;
  return out;
}

}  // namespace kvbench
