// kvzip: the tokens with the largest attention while the model repeats the prompt.
// [1] Kim et al., "KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction", 2025,
//     arXiv:2505.23416, section 3 and Algorithm 1.
// [2] Its form in NVIDIA/kvpress, commit 8bb29b9: KVzipPress.
// The trace's extra set `repeat` has a segment per chunk [first, last) of the prompt: an
// instruction and the chunk again. A token's score is the largest softmax weight from any query of
// its chunk's segment (the instruction's too), over the group's query heads. The softmax covers the
// first min(4, first) tokens, the chunk, and the segment's own keys up to the query. Tokens outside
// all chunks score 0.
//   plus     the weight times |W_h v_i|_2 / r_j, r_j the query's residual norm, W_h [hidden, dv]
//            the head's columns of the output projection; a query of norm 0 scores nothing
//   budget   head: B per head; layer, model: tokens compete by score, without a floor
// In: segments' Q [group][m, d], K [m, d], the head's K. Out: B tokens of weight 1. float64.
// Time O(group m (chunk + m) d) per segment, once per head; memory O((chunk + m) d).
#include <algorithm>
#include <numeric>

#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/output_norms.hpp"
#include "algorithms/shared/pooled_budget.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench::method_kvzip {
namespace {

constexpr const char* kSet = "repeat";
constexpr Index kFirstTokens = 4;  // of the prompt, in every softmax

// The prompt's tokens that a segment's queries see.
struct Seen {
  std::vector<Index> tokens;
  std::size_t before = 0;  // the chunk
};

Seen seen_by(Range chunk) {
  Seen out;
  out.before = static_cast<std::size_t>(std::min(kFirstTokens, chunk.begin));
  out.tokens.resize(out.before + static_cast<std::size_t>(chunk.size()));
  const auto middle = out.tokens.begin() + static_cast<std::ptrdiff_t>(out.before);
  std::iota(out.tokens.begin(), middle, Index{0});
  std::iota(middle, out.tokens.end(), chunk.begin);
  return out;
}

void add_segment(const Task& task, const ExtraSegment& segment, bool plus,
                 std::vector<double>& scores) {
  const Seen seen = seen_by(*segment.info.about);
  const std::span<const Index> chunk = std::span(seen.tokens).subspan(seen.before);
  const auto norms =
      plus ? output_norms(task, chunk, OutputNorm::two) : std::vector<std::vector<double>>();
  each_extra_weight(task.head, segment, seen.tokens, {0, segment.k.rows()},
                    [&](Index g, Index j, std::span<const double> w) {
                      const double stream =
                          plus ? static_cast<double>(segment.residual_norm[j]) : 1.0;
                      if (!(stream > 0.0)) {
                        return;
                      }
                      for (std::size_t i = 0; i < chunk.size(); ++i) {
                        const double weight = w[seen.before + i];
                        double& score = scores[chunk[i]];
                        score = std::max(score, plus ? weight * norms[g][i] / stream : weight);
                      }
                    });
}

// Of the task's tokens, [m].
std::vector<double> repeat_scores(const Task& task, const Params& params) {
  const bool plus = params.flag("plus");
  const auto& all = task.scores->cached(plus ? "kvzip plus" : "kvzip", [&] {
    std::vector<double> scores(task.head.n(), 0.0);
    for (const ExtraSegment& segment : extra_set(task, kSet).segments) {
      add_segment(task, segment, plus, scores);
    }
    return ScoreBook::Scores{std::move(scores)};
  });
  return gather_scores(all.front(), task.tokens);
}

Survey survey(const Task& task, const Params& params) {
  return competing(task, pairs_to_keep(task, params), repeat_scores(task, params));
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  require_one_shape(surveys, params.method() + ": budget=model shares tokens, so it needs");
  return pooled_shares(surveys, [](Index) { return Index{0}; });
}

Compressed compress(const Task& task, const Params& params) {
  return hold(keep_top(task.tokens, repeat_scores(task, params), own_pairs(task, params)));
}

std::map<std::string, std::string> resolve(const Params& params, const LayerFacts& layer) {
  const ExtraSetInfo& set = require_extra("kvzip", layer, kSet);
  for (const ExtraSegmentInfo& s : set.segments) {
    if (!s.about) {
      throw InputError(
          "kvzip: a segment of the extra queries 'repeat' names no chunk, expected attributes "
          "first and last");
    }
    if (params.flag("plus") && !s.has_residual_norm) {
      throw InputError(
          "kvzip: plus=true needs residual_norm of the extra queries 'repeat', which a segment "
          "does not have");
    }
  }
  if (params.flag("plus")) {
    require_projection("kvzip: plus=true", layer.hidden > 0);
  }
  return {};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "kvzip";
  info.family = Family::eviction;
  info.copies = 2;
  info.summary = "largest attention while the model repeats the prompt (extra queries 'repeat')";
  info.source = "Kim et al., 2025, arXiv:2505.23416; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "budgets per head by default (paper and kvpress: over all layers, budget=model); the "
      "protocol's sinks in place of 4 that always stay; plus divides by the norm of the residual "
      "stream (kvpress: of the attention's normalised input); needs a trace dumped with --extra "
      "repeat";
  info.params = size_params(
      {choice_param(
           "budget", {"head", "layer", "model"},
           "whose tokens compete for the budget: a KV head's, a layer's, or all replayed layers'"),
       flag_param("plus", false,
                  "multiply attention by the value's output norm over that of the residual stream "
                  "(KVzip+); needs o_proj and the set's residual_norm")});
  info.grid = {"budget=head,layer,model"};
  info.authors = "budget=model";
  info.holds = Holds::tokens;
  info.resolve = resolve;
  info.facts = [](const Params& p) {
    return JobFacts{
        .scoring = {{.sets = {kSet}}},
        .o_proj = p.flag("plus"),
        .scope = p.choice<Scope>(
            "budget", {{"head", Scope::head}, {"layer", Scope::layer}, {"model", Scope::layers}})};
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_kvzip
