// Which tokens an algorithm kept: OUT.kept.csv, a line per recorded step of each KV head and
// algorithm (what the maps of kept tokens over time and the t-SNE pictures are made of).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"
#include "report/side_table.hpp"

namespace kvbench {

/// The tokens that a KV head's cache held exactly when the query at `position` attended.
struct KeptSet {
  Index position = 0;         ///< of the query, 0-based
  std::vector<Index> tokens;  ///< strictly ascending; sinks and recent tokens included

  friend bool operator==(const KeptSet&, const KeptSet&) = default;
};

/// The columns that say which KV head, algorithm and setting, then step, tokens. The query heads of
/// a group share a cache, so a line belongs to the rows of all of them.
const SideTable& kept_table();

/// The set's line; `row`: all columns of one of its rows in the main table (to_fields).
Fields kept_fields(std::span<const std::string> row, const KeptSet& kept);

/// Ascending positions as ranges with both ends included: `0-255 300 305-310`; "" of none.
std::string ranges_text(std::span<const Index> tokens);

/// The reverse, of positions below n. Throws InputError (what stands there, what was expected) for
/// anything that ranges_text does not write, but for ranges that touch.
std::vector<Index> parse_ranges(std::string_view text, Index n);

}  // namespace kvbench
