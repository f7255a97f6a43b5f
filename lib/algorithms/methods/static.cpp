// static: every query reads what a prefill method holds of the middle. The cache stays whole, so
// that the price of one set for all queries can be told from that of dropped tokens.
// The method `A` gets the budget and has its results of the prefill protocol, to the bit. What it
// holds that is no whole token of the cache (merged tokens, codes, weights) is the index.
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/nested_methods.hpp"
#include "algorithms/registry.hpp"
#include "algorithms/shared/fixed_reads.hpp"
#include "core/error.hpp"

namespace kvbench::method_static {
namespace {

const Method& named(const Params& params) {
  return find_method(params.text("A"));
}

Params params_of_named(const Params& params) {
  return part_params(named(params), params);
}

// `tokens` as the bytes of a budget.
Task sized(const Task& task, const Params& params) {
  Task out = task;
  if (!params.is_auto("tokens")) {
    out.budget_bytes = std::min(task.count(), params.integer("tokens")) * task.head.pair_bytes();
  }
  return out;
}

Survey survey(const Task& task, const Params& params) {
  return named(params).survey(sized(task, params), params_of_named(params));
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  return named(params).share(surveys, params_of_named(params));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "static";
  info.family = Family::retrieval;
  info.summary = "every query reads what the prefill method A holds: one set for all queries";
  info.source = "kvbench";
  ParamSpec whose = method_param(
      "A", {"snapkv"}, "a method of --protocol prefill that takes a budget",
      [](const Method& m) {
        if (m.compress == nullptr) {
          throw InputError(fmt::format("{} does not run under --protocol prefill", m.info.name));
        }
        if (m.info.sizes.empty()) {
          throw InputError(fmt::format("{} takes no budget", m.info.name));
        }
      },
      "method whose set all queries read");
  whose.choices.clear();  // its default is a method's name too
  info.params = {whose,
                 integer_param("tokens", "auto", 0, 1e12, "tokens",
                               "tokens whose bytes are read of the middle, in place of a budget")};
  info.sizes = {"tokens"};
  info.not_quantizable = "it reads one set for all queries";
  info.facts = [](const Params& p) {
    const MethodInfo& of = named(p).info;
    return JobFacts{.scope = of.facts(params_of_named(p)).scope, .draws_as = of.name};
  };
  Method out{.info = info, .survey = survey, .share = share};
  out.open_reads = [](const Task& task, const Params& params) {
    return std::make_unique<FixedReads>(
        named(params).compress(sized(task, params), params_of_named(params)));
  };
  return out;
}

}  // namespace kvbench::method_static
