// What count-merge, d2o, cam and value-merge do with evicted tokens, from their definitions.
#pragma once

#include <map>
#include <vector>

#include "reference/reference.hpp"

namespace reference {

/// `count` tokens as h2o keeps them: the heaviest of the older ones, and the most recent.
std::vector<Index> heavy_and_recent(const std::vector<Index>& tokens, const Vec& scores,
                                    Index count, Index heavy);

/// A kept token after merging.
struct Merged {
  Vec k, v;
  Real w = 1;
  bool changed = false;
};

/// Every token that is not kept goes to the kept key of largest cosine; means and counts.
std::map<Index, Merged> count_merge(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                                    const std::vector<Index>& kept);

/// Tokens that are not kept, in order: those whose largest cosine u to a kept key is not below a
/// running mean of u are merged into that key's token by weights e^u, its own e.
std::map<Index, Merged> d2o(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                            const std::vector<Index>& kept, Real ema);

/// cam with `draw[i]` the uniform of token i; `scores` one per entry of `tokens`.
std::map<Index, Merged> cam(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                            const Vec& scores, const std::vector<Index>& kept, Index merge,
                            const std::vector<double>& draw);

/// Every token that is not kept goes to the kept key of largest cosine c: values become
/// (v + sum w_i v_i) / (1 + sum w_i), w_i = max(0, c) |v_i| / (|v_i| + |v| + 1e-6); keys stay.
std::map<Index, Merged> value_merge(const kvbench::KvHead& head, const std::vector<Index>& tokens,
                                    const std::vector<Index>& kept);

}  // namespace reference
