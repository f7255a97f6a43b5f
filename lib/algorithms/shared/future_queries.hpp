// Queries expected after the prompt, for expected-attention and capkv.
// [1] Devoto, Jeblick, Jegou, "Expected Attention: KV Cache Compression by Estimating Attention
//     from Future Queries Distribution", 2025, arXiv:2510.00636.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters `rope`, `n_future` and `n_skip`.
std::vector<ParamSpec> future_params();
JobFacts future_facts(const Params& params);
/// For MethodInfo::resolve: `rope`. Throws InputError if tables are missing or too short.
std::map<std::string, std::string> resolve_future(const Params& params, const LayerFacts& layer);

/// The scoring queries before their rotation, and R, the mean of the rotations to the n_future
/// positions after them. rope=post: queries as stored, R = 1.
class FutureQueries {
 public:
  /// `task` must outlive this.
  FutureQueries(const Task& task, const Params& params);

  /// [queries, d] of query head `g`, from position n_skip on.
  MatrixD past(Index g) const;
  /// x := R x, where channel c of x is x[c * stride].
  void turn(double* x, Index stride = 1) const;

 private:
  const Task& task_;
  const RopeTables* rope_;
  Range positions_;
  std::vector<double> cos_, sin_;  // of R, by pair
};

}  // namespace kvbench
