// oracle-matching: attention-matching whose reference queries are the evaluated ones. No real
// method can see them: of what keeps B keys of the trace, this is the least error that kvbench
// knows for the bytes; no proven floor, since the kept tokens are chosen by a rule. See
// algorithms/matching.hpp and attention_matching.cpp.
#include "algorithms/matching.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return match_attention(task, params, task.evaluated);
}

}  // namespace

Method method_oracle_matching() {
  MethodInfo info;
  info.name = "oracle-matching";
  info.summary =
      "an oracle: attention-matching fitted to the evaluated queries; the least error known";
  info.source = "kvbench, after Zweiger et al., 2026, arXiv:2602.16284";
  info.params = matching_params();
  info.sizes = {"tokens", "T"};
  info.sees_evaluated = true;
  info.check = [](const Params& p) { check_matching("oracle-matching", p); };
  info.scope_of = matching_scope;
  info.scratch_bytes = [](const Params& p, const LayerFacts& l, Index middle, Index kept) {
    return matching_scratch(p, l, l.group * l.evaluated, middle, kept);
  };
  return {info, compress, nullptr, matching_survey, matching_share};
}

}  // namespace kvbench
