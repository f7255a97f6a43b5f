// A@Q: what a method A keeps or makes, held by a quantizer Q in fewer bits or channels. At equal
// bytes A keeps more tokens. Nothing in A's own file knows of it, but for fit=after.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameters of A@Q: A's sizes, Q's format (Quantizer::params), `fit` where A can fit to
/// stored keys, and A's own with A's name and a dot before them. `given`: the values given to them.
/// Errors: InputError where A cannot be stored (MethodInfo::unstorable, a quantizer, no prefill) or
/// Q is no quantizer.
std::vector<ParamSpec> stored_params(const Method& a, const Method& q,
                                     const std::map<std::string, std::string>& given = {});

/// Throws InputError where Q un-rotates keys and what A makes has no positions.
void check_stored(const Method& a, const Method& q, const Params& params);

/// A's own parameters out of the whole's, its sizes included.
Params stored_part(const Method& a, const Params& params);

/// Bytes of `count` tokens of A as Q holds them, A's weights included.
Index stored_bytes(const Method& a, const Method& q, const EntryShape& shape, Index count,
                   const Params& params);

/// The largest count of tokens, at most `most`, that `budget` bytes hold. Errors: Infeasible where
/// they do not hold one, and `most` is at least 1.
Index stored_tokens(const Method& a, const Method& q, const EntryShape& shape, Index budget,
                    Index most, const Params& params);

/// What A's survey is asked for: a budget of as many pairs as the task's budget holds stored
/// tokens.
Task surveyed_part(const Method& a, const Method& q, const Task& task, const Params& params);

/// A's shares of the surveys, whose tokens as Q holds them weigh at most the heads' limits
/// together: every head's `tokens` are lowered by one until they do. Errors: Infeasible where they
/// never do.
std::vector<Share> stored_shares(const Method& a, const Method& q, std::vector<Survey> surveys,
                                 const Params& params);

/// For --memory-limit: what fitting to stored keys takes beside A's own scratch, and what coding
/// takes once A is done.
Index stored_fit_bytes(const Method& a, const Params& params, const LayerFacts& layer, Index kept);
Index stored_coding_bytes(const Method& a, const LayerFacts& layer, Index kept);

/// Runs A, then codes what it holds. `params` as stored_params declares them. Time of both.
Compressed store(const Method& a, const Method& q, const Task& task, const Params& params);

}  // namespace kvbench
