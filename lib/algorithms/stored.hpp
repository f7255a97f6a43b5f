// A@Q: what a method A keeps or makes, stored by a quantizer Q in fewer bits or channels, so A
// keeps more tokens at equal bytes; or a search A over a middle that Q holds in fewer bits: it sees
// the keys as they were, attention the entries as they are held, and a token costs the middle's
// coded bytes divided by its tokens, rounded up. A does not know of it, except for fit=after.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// A@Q. Parameters: A's sizes, Q's format (Quantizer::params), `fit` if A can fit to stored keys,
/// and A's own prefixed "NAME.". Throws InputError if A cannot be stored (not_quantizable, a
/// quantizer, one set for all queries) or Q is not a quantizer. Both must outlive the result.
Method stored(const Method& a, const Method& q);

/// Bytes that a query reads for one of the entries, at least one: an equal part of all, rounded up.
Index coded_token_bytes(const CodedEntries& coded);

}  // namespace kvbench
