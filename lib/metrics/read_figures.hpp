// What the evaluated queries of one query head read of the middle, against exact attention.
#pragma once

#include <span>
#include <vector>

#include "attention/read_lists.hpp"
#include "attention/truth.hpp"
#include "core/types.hpp"
#include "metrics/memory.hpp"

namespace kvbench {

struct ReadFigures {
  /// As held_figures, where a query holds exactly what it reads, and sinks and recent tokens.
  HeldFigures held;
  /// Share of a query's B heaviest tokens of the middle that it read, B as many as it asked for,
  /// ties to the lowest position; 0 if it asked for none. Mean over queries.
  double recall = 0.0;
};

/// `middle`: ascending. `fixed`: of these, what every query reads; ascending. `lists` (may be
/// empty) and `asked` (by head, then query; empty: as many as `fixed`) as in Reads.
ReadFigures read_figures(const KvHead& head, Index g, const ExactAttention& truth,
                         std::span<const Index> middle, std::span<const Index> fixed,
                         const ReadLists& lists, std::span<const Index> asked);

}  // namespace kvbench
