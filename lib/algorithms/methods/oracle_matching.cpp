// oracle-matching: attention-matching whose reference queries are the evaluated ones. The smallest
// error known to kvbench for the bytes, among methods that keep B keys of the trace; no proven
// floor, since a rule chooses the tokens.
#include "algorithms/shared/matching.hpp"
#include "algorithms/shared/reference_attention.hpp"

namespace kvbench::method_oracle_matching {
namespace {

Compressed compress(const Task& task, const Params& params) {
  return match_attention(task, params, [&] { return reference_rows(task.head, task.evaluated); });
}

}  // namespace

Method make() {
  Method method = matching_method("oracle-matching", compress);
  MethodInfo& info = method.info;
  info.family = Family::reference;
  info.summary =
      "an oracle: attention-matching fitted to the evaluated queries; the smallest error known";
  info.source = "kvbench, after Zweiger et al., 2026, arXiv:2602.16284";
  info.facts = [](const Params& p) {
    JobFacts out = matching_facts(p);
    out.evaluated = true;
    return out;
  };
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    return matching_bytes(p, l, l.group * l.evaluated, kept);
  };
  return method;
}

}  // namespace kvbench::method_oracle_matching
