// Methods inside methods: the parts of a composition, and methods that a parameter names
// (attention-matching's keys=h2o). A part's parameters stand in the whole's with the part's name
// and a dot before them (h2o.heavy_ratio); its sizes are the whole's business and do not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// What stands before a part's parameters: its name and a dot.
std::string part_prefix(const Method& part);

/// Whether it can say which tokens another method keeps: it runs under prefill, shares its budget
/// with no other head, takes a number of `tokens`, and holds that many of the trace and nothing
/// else.
bool can_select(const Method& m);

/// All parameters that `m` takes where these are given: its own, and those of the methods that they
/// (or defaults) name. Errors: InputError where a named method does not exist or cannot stand
/// there.
std::vector<ParamSpec> params_of(const Method& m, const std::map<std::string, std::string>& given);

/// Appends params_of the part, but for its sizes, under its prefix; `given` are the whole's values.
void add_part_params(const Method& part, const std::map<std::string, std::string>& given,
                     std::vector<ParamSpec>& out);

/// A part's own parameters out of the whole's.
Params part_params(const Method& part, const Params& all);

/// The methods that a method's own parameters name, in the order of its parameters.
std::vector<const Method*> named_methods(const Method& m, const Params& params);

}  // namespace kvbench
