// What a method holds of a head.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// Tokens kept as they are: token tokens[i] has weight weights[i], or `common` if weights is empty.
struct HeldTokens {
  std::vector<Index> tokens;   ///< strictly ascending, a subset of the task's
  std::vector<float> weights;  ///< empty or one per token, each in [0, inf)
  float common = 1.0F;

  float weight(std::size_t i) const { return weights.empty() ? common : weights[i]; }
};

/// Entries that the method made: merged, averaged, dequantized or estimated keys and values.
struct MadeTokens {
  Matrix k;                    ///< [c, d]
  Matrix v;                    ///< [c, dv]; empty in a denominator
  std::vector<float> weights;  ///< empty or [c]
  /// [c]: the positions whose rotation the keys have (of merged tokens, the kept one's); empty:
  /// entries have no position.
  std::vector<Index> positions = {};
};

/// The denominator's own set, if it is not the numerator's.
struct Denominator {
  HeldTokens held;  ///< keys only
  MadeTokens made;  ///< keys only
  /// `held` repeats the numerator's tokens with other weights, so no key is stored twice.
  bool same_keys = false;
};

/// Figures of the `diag` column, in order.
using Figures = std::vector<std::pair<std::string, std::string>>;

/// What a method keeps of the task's tokens.
struct Compressed {
  HeldTokens held;
  MadeTokens made;
  std::optional<Denominator> denominator;  ///< none: the numerator's set and weights
  /// Bytes of weights, indices, scores and counts, stored beside keys and values.
  Index aux_bytes = 0;
  /// Bytes of keys and values if not stored as rows of the trace's element type (sketches, codes);
  /// none: counted from `held`, `made` and `denominator`.
  std::optional<Index> payload_bytes;
  /// Bytes needed only while attending (a rebuilt cache). Not part of `bytes`.
  Index transient_bytes = 0;
  /// Entries of `made` that are tokens of the task in fewer bits: kept, but not exactly.
  Index quantized = 0;
  /// Tokens of the task, ascending, that count as held in `mass_kept` and amnesia although `made`
  /// has them in fewer bits: what A of an A@Q holds. Not in `held`.
  std::vector<Index> counted = {};
  /// Reason for the status `degenerate: ...` (a sketch of one cell, say). Empty: a fair instance.
  /// The row is measured in either case.
  std::string degenerate;
  Figures diag;  ///< the method's own; never used in a metric
};

/// Bytes of keys and values, without `aux_bytes`.
inline Index payload_bytes(const Compressed& c, const KvHead& head) {
  Index keys_only = 0;
  if (c.denominator) {
    keys_only = c.denominator->made.k.rows();
    keys_only +=
        c.denominator->same_keys ? 0 : static_cast<Index>(c.denominator->held.tokens.size());
  }
  return c.payload_bytes.value_or((static_cast<Index>(c.held.tokens.size()) + c.made.k.rows()) *
                                      head.pair_bytes() +
                                  keys_only * head.d() * bytes_per_element(head.dtype));
}

}  // namespace kvbench
