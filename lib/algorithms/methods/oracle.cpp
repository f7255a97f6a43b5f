// oracle: the B tokens with the largest true attention mass from the evaluated queries, mean over
// the group's query heads. The ceiling of `mass_kept` for methods that keep tokens; of `rel_error`
// a strong reference, no floor. Time O(m).
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"

namespace kvbench::method_oracle {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return hold_top(task, params, gather_scores(task.true_mass, task.tokens));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "oracle";
  info.family = Family::reference;
  info.summary = "largest true attention mass from the evaluated queries: the ceiling of mass_kept";
  info.source = "kvbench";
  info.params = size_params();
  info.holds = Holds::tokens;
  info.facts = [](const Params&) { return JobFacts{.evaluated = true}; };
  return {info, compress};
}

}  // namespace kvbench::method_oracle
