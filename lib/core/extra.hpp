// Optional contents of a trace's layer (docs/trace_format.md): extra queries that attend to the
// prompt, and scores of its tokens by another program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// One segment of a set of extra queries.
struct ExtraSegmentInfo {
  Index queries = 0;            ///< m, at least 1
  std::optional<Index> prefix;  ///< tokens of the prompt that the model had read, 0 .. n
  std::optional<Range> about;   ///< tokens that the segment is about, within [0, prefix)
  bool has_residual_norm = false;
};

/// A set of extra queries of a layer.
struct ExtraSetInfo {
  std::string name;                        ///< letters, digits, '-', '_', '.'
  std::vector<ExtraSegmentInfo> segments;  ///< at least one

  Index queries() const {
    Index out = 0;
    for (const ExtraSegmentInfo& s : segments) {
      out += s.queries;
    }
    return out;
  }
};

/// Scores of a layer's tokens by another program.
struct ScoresInfo {
  std::string name;             ///< as a set's
  std::optional<Index> prefix;  ///< tokens of the prompt that the program had read, 0 .. n
};

/// One segment for one KV head. Elements are exact float32 copies, all finite.
struct ExtraSegment {
  ExtraSegmentInfo info;
  std::vector<Matrix> q;             ///< group x [m, d]
  Matrix k;                          ///< [m, d]: the queries' own keys
  std::vector<Index> positions;      ///< [m], strictly ascending: rotation of q and k
  std::vector<float> residual_norm;  ///< [m], each >= 0; empty: unknown
};

struct ExtraSet {
  std::string name;
  std::vector<ExtraSegment> segments;
};

/// Scores of one KV head's tokens.
struct NamedScores {
  std::string name;
  std::vector<float> values;  ///< [n], all finite
};

/// Returns null if there is none.
template <class All>
const typename All::value_type* find_named(const All& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &All::value_type::name);
  return found == all.end() ? nullptr : &*found;
}

/// Whether `text` is a valid name: 1 to 100 letters, digits, '-', '_' and '.'.
inline bool is_set_name(std::string_view text) {
  constexpr std::size_t kMaxName = 100;
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !text.empty() && text.size() <= kMaxName &&
         text.find_first_not_of(kAllowed) == std::string_view::npos;
}

/// Bytes of a set for one KV head.
inline Index extra_bytes(const ExtraSetInfo& set, Index group, Index d) {
  return set.queries() * (4 * (group + 1) * d + 12);
}

}  // namespace kvbench
