// The composition A+B: a token-keeping method A gets a share of the middle's bytes; a method B gets
// the remaining tokens and bytes. Under prefill A's tokens enter numerator and denominator with
// weight 1 and B compresses the rest; under retrieval every query reads A's tokens and its own of
// the rest by B. The parts do not know of it. From BalanceKV, section 1.2 (keep important tokens
// exactly, compress the rest), with A in place of the fixed first and last tokens.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// A+B. Parameters: `share`, the sizes of the whole, and the parts' own without sizes, prefixed
/// "NAME.". Throws InputError if A keeps no tokens or does not run under prefill, B shares its
/// budget or reads one set for all queries, A and B are the same, or either has a fixed size. Both
/// must outlive the result.
Method composed(const Method& a, const Method& b);

}  // namespace kvbench
