// attention-matching: kept tokens get the weights and values that best reproduce the attention mass
// and output of the whole middle for reference queries.
// [1] Zweiger, Fu, Guo, Kim, "Fast KV Compaction via Attention Matching", 2026, arXiv:2602.16284.
// [2] Its public code, commit 2e59cc8.
// Reference queries: the last ref_queries scoring positions (ref=NAME: queries of that extra set)
// of all query heads of the group, R rows of equal weight, uncausal over the task's tokens alone.
//   keys     B tokens by `keys`;
//   weights  argmin |E w - y|^2 over w_min <= w <= w_max, E = exp(logits of the kept tokens) and
//            y = their sum over all tokens, each row divided by its largest exponential, to the
//            optimum (bounded_least_squares.hpp);
//   values   (X'X + r) (C - V) = X' (A - X V), X = softmax over the kept tokens with the stored
//            weights, A = exact outputs, r = ridge trace(X'X) / B.
// In: K [m, d], V [m, dv], Q [R, d]. Out: B pairs with a float32 weight each; keys are the tokens',
// values are rounded once to the trace's type.
#include <algorithm>

#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/matching.hpp"
#include "algorithms/shared/reference_attention.hpp"

namespace kvbench::method_attention_matching {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const Index count = params.integer("ref_queries");
  const auto queries = [&] {
    const std::vector<std::string> ref = ref_sets(params);
    return ref.empty()
               ? reference_rows(task.head, {std::max(task.scoring.begin, task.scoring.end - count),
                                            task.scoring.end})
               : reference_rows(task.head, extra_set(task, ref.front()), count);
  };
  return match_attention(task, params, queries, matching_book_key(params));
}

// Reference queries of all query heads of the group.
Index reference_count(const Params& p, const LayerFacts& l) {
  Index available = l.scoring.size();
  for (const std::string& name : ref_sets(p)) {
    const ExtraSetInfo* set = find_named(l.extra, name);
    available = set == nullptr ? 0 : set->queries();
  }
  return l.group * std::min(p.integer("ref_queries"), available);
}

}  // namespace

Method make() {
  Method method = matching_method(
      "attention-matching", compress,
      {integer_param(
           "ref_queries", "256", 1, 1e9, "positions",
           "reference queries: the last scoring positions, of all query heads of the group; larger "
           "averages over more, and over queries that favour their own neighbours in the middle"),
       ref_param()});
  MethodInfo& info = method.info;
  info.family = Family::merging;
  info.summary = "weights and values of kept tokens fitted to the attention of past queries";
  info.source = "Zweiger et al., Fast KV Compaction via Attention Matching, 2026, arXiv:2602.16284";
  info.departures =
      "w_min = 1 and ridge = 0.01 in place of exp(-3) and 0; weights at their optimum; reference "
      "queries are the prompt's own last ones";
  info.grid = {"keys=rms,max;ridge=0.01,0.1", "w_min=0,0.049787068367863944,1;ridge=0,0.01",
               "ref_queries=64,256,1024"};
  info.authors = "w_min=0.049787068367863944;ridge=0";
  info.resolve = resolve_ref;
  info.facts = [](const Params& p) {
    JobFacts out = matching_facts(p);
    out.scoring = {{.last = p.integer("ref_queries"), .sets = ref_sets(p)}};
    return out;
  };
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    return matching_bytes(p, l, reference_count(p, l), kept);
  };
  return method;
}

}  // namespace kvbench::method_attention_matching
