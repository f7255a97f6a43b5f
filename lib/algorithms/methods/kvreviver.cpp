// kvreviver: newest tokens and those of most accumulated attention exactly; all others in a count
// sketch from which attending rebuilds them.
// [1] Yuan et al., "KVReviver: Reversible KV Cache Compression with Sketch-Based Token
//     Reconstruction", Algorithms 1-4. Where it is silent: scores are float32; ties as in
//     streams/revival.hpp.
//
// prefill=batch: by the scoring queries' exact attention, all at once (revive_batch).
// prefill=stream: each token's query attends to everything up to itself (the revived cache, and
// exactly the sinks and a composition's other tokens) and adds to the scores, so that errors feed
// back; then the token is inserted.
// Stream: each query attends to sinks, recent window and cache; then the token that leaves the
// window is inserted. Scores count from a token's arrival on, so the window's are state too; sinks
// have none.
//
// In: K [n, d], V [n, dv], queries. Out: exact tokens (held) and estimated ones (made), weight 1.
// Payload: pairs of Recent and Candidate, sketch cells at the trace's type. Aux: 4 bytes per
// candidate, 32 per row of the sketch (hash words), 4 per cell for estimate=mean, in a stream 4 per
// score. Transient: the rebuilt tokens. Time O(group n^2 d), memory O(n d); a batch O(rows n (d +
// dv)) beside the scores. A device decides all steps of a stream at once; none depends on later
// ones.
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/shared/fisher_budget.hpp"
#include "algorithms/shared/revive_cache.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"
#include "core/error.hpp"

namespace kvbench::method_kvreviver {
namespace {

bool by_fisher(const Params& p) {
  return p.text("layer_budget") == "fisher";
}

bool in_batch(const Params& p) {
  return p.text("prefill") == "batch";
}

Vague vague_of(const Params& p) {
  const std::string& text = p.text("vague");
  return text == "none" ? Vague::none : text == "mean" ? Vague::mean : Vague::sketch;
}

ReviveOptions read_options(const Params& p) {
  return {.recent_ratio = p.real("recent_ratio"),
          .candidate_ratio = p.real("candidate_ratio"),
          .vague_ratio = p.real("vague_ratio"),
          .slack = p.integer("slack"),
          .replace_rate = p.real("replace_rate"),
          .reduce = reduce_of(p),
          .vague = vague_of(p)};
}

SketchShape read_shape(const KvHead& head, const Params& p) {
  return {.rows = p.integer("rows"),
          .cells = 0,
          .d = head.d(),
          .dv = head.dv(),
          .dtype = head.dtype,
          .estimate = p.text("estimate") == "sum" ? CellEstimate::sum : CellEstimate::mean};
}

Index read_budget(const KvHead& head, const Params& p, std::optional<Index> budget) {
  if (!p.is_auto("tokens") && !by_fisher(p)) {
    budget = p.integer("tokens") * head.pair_bytes();
  }
  return given_budget(budget, "tokens=");
}

Survey survey(const Task& task, const Params& params) {
  const Index tokens = params.is_auto("tokens")
                           ? task.budget_bytes.value_or(0) / task.head.pair_bytes()
                           : params.integer("tokens");
  return {std::min(tokens, task.count()), {*task.fisher}};
}

// Splits by Fisher information over layers, then evenly over KV heads, odd tokens to the lowest.
std::vector<Share> share(std::span<const Survey> surveys, const Params&) {
  std::vector<double> fisher;
  std::vector<Index> caps;
  std::vector<Index> heads;
  Index total = 0;
  for (std::size_t i = 0; i < surveys.size(); ++i) {
    if (i == 0 || surveys[i].layer != surveys[i - 1].layer) {
      fisher.push_back(surveys[i].data.front());
      caps.push_back(0);
      heads.push_back(0);
    }
    caps.back() += surveys[i].middle;
    ++heads.back();
    total += surveys[i].tokens;
  }
  const std::vector<Index> parts = fisher_split(fisher, caps, total);
  std::vector<Share> out;
  for (std::size_t l = 0; l < parts.size(); ++l) {
    for (Index h = 0; h < heads[l]; ++h) {
      out.push_back({parts[l] / heads[l] + (h < parts[l] % heads[l] ? 1 : 0), {}});
    }
  }
  return out;
}

Compressed compress_stream(const Task& task, const ReviveOptions& options, const RevivePlan& plan) {
  std::vector<ReviveStep> steps;
  for (const Index j : task.tokens) {
    steps.push_back({j, j, task.scoring.contains(j) && j >= task.head.q_start()});
  }
  ReviveCache cache(task.head, plan, options, task.rng.stream("sketch"), task.backend, steps);
  for (const ReviveStep& step : steps) {
    cache.step(step);
  }
  return cache.view();
}

Compressed compress(const Task& task, const Params& params) {
  const ReviveOptions options = read_options(params);
  std::optional<Index> given = task.budget_bytes;
  if (by_fisher(params)) {
    given = task.share->tokens * task.head.pair_bytes();
  }
  const Index budget = read_budget(task.head, params, given);
  const SketchShape shape = read_shape(task.head, params);
  const bool batch = in_batch(params);
  const RevivePlan plan = plan_revive(options, shape, task.count(),
                                      batch ? std::nullopt : std::optional<Index>(0), budget);
  if (!batch) {
    return compress_stream(task, options, plan);
  }
  if (plan.all_exact) {
    return hold(task.tokens);
  }
  return revive_batch(task, options, plan,
                      gather_scores(accumulated_scores(task, params), task.tokens));
}

// What the protocol will append.
std::vector<ReviveStep> steps_of(const StreamTask& task) {
  std::vector<ReviveStep> steps;
  for (Index j = 0; j < task.head.n(); ++j) {
    const Index leaving = j - task.recent;
    steps.push_back({j, leaving >= task.sink ? leaving : -1, j >= task.head.q_start()});
  }
  return steps;
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  const ReviveOptions options = read_options(params);
  const Range middle = stream_middle(task);
  RevivePlan plan =
      plan_revive(options, read_shape(task.head, params), middle.size(),
                  task.head.n() - middle.begin, read_budget(task.head, params, task.budget_bytes));
  plan.sink = task.sink;
  return std::make_unique<ReviveCache>(task.head, plan, options, task.rng.stream("sketch"),
                                       task.backend, steps_of(task));
}

void check(const Params& params) {
  check_ratios(read_options(params));
  if (!in_batch(params) && vague_of(params) != Vague::sketch) {
    throw InputError(fmt::format("kvreviver: vague={} needs prefill=batch, got prefill=stream",
                                 params.text("vague")));
  }
}

std::map<std::string, std::string> resolve(const Params& params, const LayerFacts& layer) {
  if (layer.stream && by_fisher(params)) {
    throw InputError("kvreviver: layer_budget=fisher runs under prefill only");
  }
  if (layer.stream && vague_of(params) != Vague::sketch) {
    throw InputError(
        fmt::format("kvreviver: vague={} runs under prefill only", params.text("vague")));
  }
  if (by_fisher(params) && !layer.has_fisher) {
    throw InputError(
        "kvreviver: layer_budget=fisher needs the trace's per-layer attribute `fisher`, which this "
        "trace does not have; use layer_budget=uniform");
  }
  return {};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "kvreviver";
  info.family = Family::merging;
  info.copies = 2;
  info.not_quantizable = "its sketch holds no tokens";
  info.summary = "recent and heavy tokens exactly, all others rebuilt from a count sketch";
  info.source =
      "Yuan et al., KVReviver: Reversible KV Cache Compression with Sketch-Based Token "
      "Reconstruction, Algorithms 1-4";
  info.departures =
      "scores reduced over the group's query heads, in streams at each step; cells at the trace's "
      "element type; all tokens exact if the budget holds them; a batch swaps nothing back; "
      "vague=none and vague=mean are not the paper's; in streams a position without a scoring "
      "query is inserted with score 0 and adds to none";
  info.params = {
      integer_param(
          "tokens", "auto", 0, 1e12, "tokens",
          "size in place of a budget: the bytes of that many tokens, divided as a budget is"),
      real_param("recent_ratio", "0.45", 0, 1, "",
                 "fraction for the newest tokens, of the bytes left after hash words (outside a "
                 "batch also the slack, in a stream the scores)"),
      real_param("candidate_ratio", "0.45", 0, 1, "",
                 "fraction for the tokens of most accumulated attention"),
      real_param("vague_ratio", "0.1", 1e-6, 1, "", "fraction for the count sketch"),
      integer_param("rows", "3", 1, static_cast<double>(kMaxSketchRows), "",
                    "rows of the sketch, whose median estimates a token"),
      integer_param("slack", "16", 0, 1e9, "tokens",
                    "tokens by which Recent may exceed its share before it is reduced in bulk; "
                    "ignored by a batch"),
      real_param("replace_rate", "1.1", 1, 1e6, "",
                 "a vague token comes back when its score exceeds the lowest candidate's times "
                 "this; ignored by a batch"),
      choice_param("estimate", {"sum", "mean"},
                   "a cell, or a cell divided by the number of its tokens"),
      reduce_param(),
      choice_param(
          "prefill", {"batch", "stream"},
          "compress the middle once, by exact attention within the prompt, or token by token, each "
          "attending to the compressed ones before it; ignored by the stream protocol"),
      choice_param(
          "vague", {"sketch", "none", "mean"},
          "what represents the other tokens: the sketch, nothing, or their mean token weighted by "
          "count; saved bytes go to heavy tokens; none and mean: prefill=batch only"),
      choice_param("layer_budget", {"uniform", "fisher"},
                   "equal budgets for all layers, or proportional to the trace's per-layer "
                   "attribute fisher"),
  };
  info.grid = {"estimate=sum,mean;rows=1,3", "candidate_ratio=0.7;recent_ratio=0.2",
               "candidate_ratio=0.2;recent_ratio=0.7",
               "candidate_ratio=0.5;recent_ratio=0.2;vague_ratio=0.3",
               "candidate_ratio=0.79;recent_ratio=0.2;vague_ratio=0.01"};
  info.sizes = {"tokens"};
  info.resolve = resolve;
  info.facts = [](const Params& p) {
    check(p);
    return JobFacts{.scoring = {{.middle = p.text("prefill") == "stream"}},
                    .random = vague_of(p) == Vague::sketch,
                    .scope = by_fisher(p) ? Scope::layers : Scope::head};
  };
  return {info, compress, open_stream, survey, share};
}

}  // namespace kvbench::method_kvreviver
