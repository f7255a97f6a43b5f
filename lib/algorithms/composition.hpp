// A+B: a token-keeping method A gets a share of the middle's bytes, any compressing method B gets
// the tokens that A did not keep and the bytes that A did not use. A's tokens enter both sets of
// the estimator with weight 1. Nothing in a part's own file knows of it.
// The idea is BalanceKV's own (its paper, section 1.2: keep the important tokens exactly,
// represent the rest), with A in the place of fixed first and last tokens.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The composition's parameters: `share`, the sizes `tokens` and `T` of the whole, and those of
/// both parts (but for their sizes) with the part's name and a dot before them.
/// Errors: InputError where A and B cannot be composed: A keeps no tokens, B shares its budget with
/// other heads, either has one size only or runs under no `prefill`, or both are the same method.
/// `given`: the values given to them, by which a part may name a method of its own.
std::vector<ParamSpec> composition_params(const Method& a, const Method& b,
                                          const std::map<std::string, std::string>& given = {});

/// Throws InputError where parameters do not go together: B shares its budget with other heads.
void check_composition(const Method& b, const Params& params);

/// What A is asked for: its part of the bytes, random streams of its own.
Task first_task(const Method& a, const Task& task, const Params& params);

/// Bytes that the whole may hold: the task's budget, or what `tokens` or T says; where A shares its
/// part with other heads, its share (task.share) and the rest of this head's bytes.
Index composition_bytes(const Task& task, const Params& params);

/// Runs A, then B on what A left: the tokens that it did not keep, and the bytes that it did not
/// use. `params` as composition_params declares them. Time of both.
Compressed compose(const Method& a, const Method& b, const Task& task, const Params& params);

}  // namespace kvbench
