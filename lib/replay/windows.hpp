// Which tokens and queries a protocol uses: windows of the prefill, evaluated steps of a stream,
// and the bytes of a budget.
#pragma once

#include <vector>

#include "core/types.hpp"
#include "replay/options.hpp"
#include "trace/schema.hpp"

namespace kvbench {

/// Windows of the prefill protocol in n tokens. Tokens before the three windows are seen by no
/// evaluated query of a layer with a sliding window. They are not held and not counted.
struct Windows {
  Range sink;         ///< tokens of [0, --sink) that an evaluated query sees
  Range middle;       ///< the tokens that are compressed; empty where sink and recent meet
  Range recent;       ///< all later tokens
  Range scoring;      ///< positions of the queries that methods may score with
  Index queries = 0;  ///< evaluated queries: the last min(--queries, nq)

  /// Tokens of the full cache: those that some evaluated query sees.
  Index seen() const { return sink.size() + middle.size() + recent.size(); }
};

/// `window`: the layer's sliding window (KvHead::window), 0 for none.
Windows windows_of(const ReplayOptions& options, Index n, Index nq, Index window = 0);
inline Windows windows_of(const ReplayOptions& options, const LayerMeta& layer) {
  return windows_of(options, layer.n, layer.nq, layer.window.value_or(0));
}

/// The positions of a range, ascending.
std::vector<Index> positions_of(Range range);

/// Evaluated positions of a stream of n tokens, ascending: every j with (j + 1) divisible by
/// --eval-every (0: n / 64, at least 1), and the last --queries.
std::vector<Index> stream_steps(const ReplayOptions& options, Index n);

/// Positions at which --kept records the held tokens: under prefill the last; under stream every j
/// with (j + 1) divisible by --eval-every, and the last.
std::vector<Index> kept_steps(const ReplayOptions& options, Index n);

/// Returns floor(rho * full): the bytes of budget `rho` for a middle of `full` bytes.
Index budget_bytes(double rho, Index full);

}  // namespace kvbench
