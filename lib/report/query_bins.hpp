// Bins of adjacent evaluated queries, numbered from 0: the lines of OUT.queries.csv.
#pragma once

#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct QueryBin {
  Index first = 0;  ///< offsets, both included
  Index last = 0;
  bool operator==(const QueryBin&) const = default;
};

/// 0, 1, 2-3, 4-7, 8-15, 16-31, then 32 offsets each; the last bin ends with the last query.
std::vector<QueryBin> query_bins(Index queries);

}  // namespace kvbench
