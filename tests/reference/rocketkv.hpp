// Slow reference of RocketKV's second stage, token by token.
#pragma once

#include "reference/selection.hpp"

namespace reference {

/// [kept]: mean over the group of the softmax over `kept` of each token's page's bound of the logit
/// with the query at `position`: over the `channels` with the largest mean |q|, the channel's
/// largest key element in the page where the group's summed query is positive, the smallest
/// elsewhere; divided by the root of the channels' share of |q|.
Vec rocket_scores(const kvbench::KvHead& head, const std::vector<Index>& kept, Index page,
                  Index channels, Index position);

}  // namespace reference
