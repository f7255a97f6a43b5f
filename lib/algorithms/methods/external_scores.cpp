// external-scores: the tokens that another program (KVzap, FastKVzip, ...) scored highest. Scores
// are in the trace (docs/trace_format.md, scores/<name>), whose attribute `prefix` states that the
// program read no evaluated token.
//   B tokens with the largest scores, or, with threshold=x, all with a score above x.
// In: scores [n]. Out: tokens of weight 1. Time O(m).
#include <fmt/format.h>

#include <stdexcept>

#include "algorithms/shared/extra_attention.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench::method_external_scores {
namespace {

Compressed compress(const Task& task, const Params& params) {
  const NamedScores* scores = find_named(task.named_scores, params.text("name"));
  if (scores == nullptr) {
    throw std::logic_error(
        fmt::format("external-scores: the task lacks scores '{}', which its parameters name",
                    params.text("name")));
  }
  if (!params.is_auto("threshold")) {
    const auto threshold = static_cast<float>(params.real("threshold"));  // the scores' type
    Compressed out;
    for (const Index i : task.tokens) {
      if (scores->values[i] > threshold) {
        out.held.tokens.push_back(i);
      }
    }
    return out;
  }
  std::vector<double> own;
  own.reserve(task.tokens.size());
  for (const Index i : task.tokens) {
    own.push_back(static_cast<double>(scores->values[i]));
  }
  return hold_top(task, params, own);
}

std::map<std::string, std::string> resolve(const Params& params, const LayerFacts& layer) {
  std::string name = params.text("name");
  if (params.is_auto("name")) {
    if (layer.scores.size() > 1) {
      std::vector<std::string> names;
      for (const ScoresInfo& s : layer.scores) {
        names.push_back(s.name);
      }
      throw InputError(
          fmt::format("external-scores: the layer has several scores, expected name= one of {}",
                      fmt::join(names, ", ")));
    }
    if (layer.scores.empty()) {
      throw InputError("external-scores: the layer has no scores, expected a trace with some");
    }
    name = layer.scores.front().name;
  }
  require_scores("external-scores", layer, name);
  return {{"name", name}};
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "external-scores";
  info.family = Family::eviction;
  info.summary = "largest scores of another program, from the trace";
  info.source = "scores/<name> of the trace: gates and predictors such as KVzap";
  info.params = size_params(
      {name_param("name", "auto", "which of the trace's scores; auto: the layer's only ones"),
       real_param("threshold", "auto", -1e38, 1e38, "units of the scores",
                  "keep scores above this, in place of a budget; larger keeps less")});
  info.sizes = {"tokens", "T", "threshold"};
  info.holds = Holds::tokens;
  info.facts = [](const Params& p) { return JobFacts{.scoring = {{.stored = {p.text("name")}}}}; };
  info.resolve = resolve;
  return {info, compress};
}

}  // namespace kvbench::method_external_scores
