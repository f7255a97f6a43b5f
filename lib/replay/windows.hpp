// Tokens and queries that a protocol uses: windows of a prefill, evaluated steps of a stream, bytes
// of a budget.
#pragma once

#include <vector>

#include "core/types.hpp"
#include "replay/options.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// Windows of a prefill: ranges of [0, n). Tokens before the three windows are neither held nor
/// counted: a layer's sliding window hides them from the evaluated queries.
struct Windows {
  Range sink;         ///< tokens of [0, --sink) that an evaluated query sees
  Range middle;       ///< tokens to compress; empty if sink and recent meet
  Range recent;       ///< all later tokens
  Range scoring;      ///< positions of the queries that methods may score with
  Index queries = 0;  ///< evaluated queries: the last min(--queries, nq)

  /// Number of tokens in the full cache.
  Index seen() const { return sink.size() + middle.size() + recent.size(); }
};

/// `window`: the layer's sliding window (KvHead::window), 0 for none.
Windows windows_of(const ReplayOptions& options, Index n, Index nq, Index window);
inline Windows windows_of(const ReplayOptions& options, const LayerMeta& layer) {
  return windows_of(options, layer.n, layer.nq, layer.window.value_or(0));
}

std::vector<Index> positions_of(Range range);

/// Evaluated positions of a stream of n tokens, ascending: each j with (j + 1) divisible by
/// --eval-every (0: n / 64, at least 1), and the last --queries positions.
std::vector<Index> stream_steps(const ReplayOptions& options, Index n);

/// Positions at which --kept records the held tokens: the last one; under stream also each j with
/// (j + 1) divisible by --eval-every.
std::vector<Index> kept_steps(const ReplayOptions& options, Index n);

/// Offsets of evaluated queries that share a line of OUT.queries.csv: 0, 1, 2-3, 4-7, 8-15, 16-31,
/// then 32 each; the last bin ends with the last query.
std::vector<Range> query_bins(Index queries);

/// Returns floor(rho * full), the bytes of budget `rho` [0, 1] for `full` bytes. A product within
/// rounding of an integer is that integer.
Index budget_bytes(double rho, Index full);

/// Bytes that budget `rho` leaves for the middle, of `pair_bytes` a token; with --total-budget
/// `rho` is of all tokens. Throws Infeasible if the others alone exceed it.
Index middle_budget(const ReplayOptions& options, double rho, const Windows& w, Index pair_bytes);

}  // namespace kvbench
