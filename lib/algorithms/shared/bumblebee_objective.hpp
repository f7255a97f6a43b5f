// Parameters of BumbleBee's objective, for its offline and streaming forms.
#pragma once

#include "algorithms/params.hpp"
#include "attention/facility_location.hpp"
#include "streams/concave_phi.hpp"

namespace kvbench {

/// `lambda`, `sim`, `phi`, `alpha`, `beta`.
inline std::vector<ParamSpec> objective_params() {
  return {real_param("lambda", "0.3", 0, 1, "",
                     "weight of facility location; 0: accumulated attention alone, 1: keys alone"),
          choice_param("sim", {"relu", "one-plus", "abs"},
                       "similarity of two keys: max(0, cos), 1 + cos, |cos|"),
          choice_param("phi", {"log", "power"},
                       "concave function of the summed attention: log(1 + x), or the inverse of "
                       "y -> alpha y^(1/alpha) + beta y"),
          real_param("alpha", "0.04", 0.001, 1, "", "of phi=power; smaller saturates earlier"),
          real_param("beta", "1", 0, 1e6, "", "of phi=power; larger flattens it near 0")};
}

inline Similarity similarity_of(const Params& params) {
  return params.choice<Similarity>("sim", {{"relu", Similarity::relu},
                                           {"one-plus", Similarity::one_plus},
                                           {"abs", Similarity::absolute}});
}

inline ConcavePhi phi_of(const Params& params) {
  return params.text("phi") == "power"
             ? ConcavePhi::power(params.real("alpha"), params.real("beta"))
             : ConcavePhi::log();
}

}  // namespace kvbench
