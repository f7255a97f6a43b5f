// The composition A+B: a token-keeping method A gets a share of the middle's bytes; a compressing
// method B gets the remaining tokens and bytes. A's tokens enter numerator and denominator with
// weight 1. The parts do not know of it. From BalanceKV, section 1.2 (keep important tokens
// exactly, compress the rest), with A in place of the fixed first and last tokens.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// Parameters: `share`, the sizes of the whole, and the parts' own without sizes, prefixed "NAME.".
/// `given`: the values set. Throws InputError if A keeps no tokens, B shares its budget, A and B
/// are the same, either has a fixed size, A has no `prefill`, or B has neither that nor
/// `retrieval`.
std::vector<ParamSpec> composition_params(const Method& a, const Method& b,
                                          const std::map<std::string, std::string>& given = {});

/// Throws InputError if B shares its budget with other heads.
void check_composition(const Method& b, const Params& params);

/// What A keeps of its part of the task. Throws std::logic_error if that is not tokens of weight 1.
Compressed keep_first(const Method& a, const Task& task, const Params& params);

/// `tokens` that are not in `kept`; both ascending.
std::vector<Index> tokens_without(std::span<const Index> tokens, std::span<const Index> kept);

/// A's part of the task.
Task first_task(const Method& a, const Task& task, const Params& params);

/// B's part of the task: the tokens `left` by A, within `bytes`. `left` must outlive it.
Task second_task(const Method& b, const Task& task, std::span<const Index> left, Index bytes);

/// Bytes of the whole head; if A shares with other heads, A's share (task.share) plus B's part.
Index composition_bytes(const Task& task, const Params& params);

/// Runs A, then B on the tokens that A dropped with the bytes that A left.
Compressed compose(const Method& a, const Method& b, const Task& task, const Params& params);

}  // namespace kvbench
