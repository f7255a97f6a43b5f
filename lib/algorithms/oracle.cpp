// oracle: the B tokens with the largest true attention mass from the evaluated queries, mean over
// the group's query heads. No real method can see those queries: this is the ceiling of
// `mass_kept` for methods that keep tokens. Of `rel_error` it is a strong reference, no floor.
// Time O(m).
#include "algorithms/contract.hpp"
#include "algorithms/size.hpp"

namespace kvbench {
namespace {

Compressed compress(const Task& task, const Params& params) {
  std::vector<double> mass;
  mass.reserve(task.tokens.size());
  for (const Index i : task.tokens) {
    mass.push_back(task.true_mass[static_cast<std::size_t>(i)]);
  }
  Compressed out;
  out.held.tokens = keep_top(task.tokens, mass,
                             tokens_to_keep(task, params, task.head.pair_bytes()), task.device);
  return out;
}

}  // namespace

Method method_oracle() {
  MethodInfo info;
  info.name = "oracle";
  info.summary = "largest true attention mass from the evaluated queries: the ceiling of mass_kept";
  info.source = "kvbench";
  info.params = size_params();
  info.sizes = size_names();
  info.keeps_tokens = true;
  info.sees_evaluated = true;
  return {info, compress};
}

}  // namespace kvbench
