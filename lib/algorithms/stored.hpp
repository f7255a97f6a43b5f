// A@Q: what a method A keeps or makes, stored by a quantizer Q in fewer bits or channels, so A
// keeps more tokens at equal bytes. A does not know of it, except for fit=after.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// Throws InputError if Q is not a quantizer.
void check_quantizer(const Method& a, const Method& q);

/// The parameters of stored_params() without its checks.
std::vector<ParamSpec> sized_params(const Method& a, const Method& q,
                                    const std::map<std::string, std::string>& given);

/// Parameters: A's sizes, Q's format (Quantizer::params), `fit` if A can fit to stored keys, and
/// A's own prefixed "NAME.". `given`: the values set. Throws InputError if A cannot be stored
/// (MethodInfo::not_quantizable, a quantizer, no prefill) or Q is not a quantizer.
std::vector<ParamSpec> stored_params(const Method& a, const Method& q,
                                     const std::map<std::string, std::string>& given = {});

/// Throws InputError if Q un-rotates keys and A's entries have no positions.
void check_stored(const Method& a, const Method& q, const Params& params);

/// A's parameters, taken from the whole's, with sizes.
Params stored_part(const Method& a, const Params& params);

/// Bytes of `count` tokens of A stored by Q, with A's weights.
Index stored_bytes(const Method& a, const Method& q, const EntryShape& shape, Index count,
                   const Params& params);

/// The largest count of tokens, at most `most`, that fits `budget` bytes. Throws Infeasible if one
/// does not fit and `most` >= 1.
Index stored_tokens(const Method& a, const Method& q, const EntryShape& shape, Index budget,
                    Index most, const Params& params);

/// A's task for a survey: its budget is as many pairs as stored tokens fit the task's budget.
Task surveyed_part(const Method& a, const Method& q, const Task& task, const Params& params);

/// A's shares, lowered until their stored tokens fit the sum of the heads' limits: each round takes
/// one token from every survey. Throws Infeasible if they never fit.
std::vector<Share> stored_shares(const Method& a, const Method& q, std::vector<Survey> surveys,
                                 const Params& params);

/// Runs A, then codes what it holds.
Compressed store(const Method& a, const Method& q, const Task& task, const Params& params);

}  // namespace kvbench
