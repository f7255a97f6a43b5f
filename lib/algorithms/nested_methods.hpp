// Nested methods: parts of a composition, and methods named by a parameter (attention-matching's
// keys=h2o). A part's parameters are prefixed with its name and a dot (h2o.heavy_ratio); its sizes
// are left to the whole.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// "NAME.".
std::string part_prefix(const Method& part);

/// Whether it can select tokens for another method: runs under prefill, has a scope of one head,
/// takes `tokens`, and holds only tokens of the trace.
bool can_select(const Method& m);

/// All parameters of `m`: its own, and those of components and of methods named by `given` or by
/// defaults. Throws
/// InputError if a named method does not exist or is not accepted there.
std::vector<ParamSpec> params_of(const Method& m, const std::map<std::string, std::string>& given);

/// Appends params_of(part) under its prefix, without its sizes. `given` are the whole's values.
void add_part_params(const Method& part, const std::map<std::string, std::string>& given,
                     std::vector<ParamSpec>& out);

Params part_params(const Method& part, const Params& all);

/// Appends a part's diagnostics under its prefix.
void add_part_diag(const Method& part, const Figures& from, Figures& to);

std::vector<const Method*> named_methods(const Method& m, const Params& params);

}  // namespace kvbench
