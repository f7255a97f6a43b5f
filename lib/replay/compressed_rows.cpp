#include "replay/compressed_rows.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kvbench {

std::vector<WeightedRows> weighted_rows(const KvHead& head, const Compressed& c,
                                        std::span<const Index> first, Index queries) {
  std::vector<WeightedRows> out;
  const auto add = [&](const HeldTokens& held, const MadeTokens& made, SoftmaxPart part) {
    const auto count = static_cast<std::size_t>(made.k.rows());
    out.push_back({head.k, head.v, held.tokens, held.weights, held.common, part, {}, true});
    out.push_back({made.k, made.v, first.first(count), made.weights, 1.0F, part, {}, false});
    out.back().positions = made.positions;
  };
  add(c.held, c.made, c.denominator ? SoftmaxPart::numerator : SoftmaxPart::both);
  if (c.denominator) {
    add(c.denominator->held, c.denominator->made, SoftmaxPart::denominator);
  }
  for (WeightedRows& set : out) {
    if (head.window > 0) {
      set.visible_from = head.n() - queries + 1;
      set.window = head.window;
    }
  }
  return out;
}

void add_compressed(const Backend& backend, SoftmaxSums& sums, const KvHead& head,
                    const Compressed& c) {
  const Index made =
      std::max(c.made.k.rows(), c.denominator ? c.denominator->made.k.rows() : Index{0});
  std::vector<Index> first(made);
  std::iota(first.begin(), first.end(), Index{0});
  const std::vector<WeightedRows> sets = weighted_rows(head, c, first, sums.queries().rows());
  backend.add_rows_to(head, {&sums, 1}, {&sets, 1});
}

}  // namespace kvbench
