// What the tests of clustergen share: running it, and reading its slots back from the weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "algorithms/params.hpp"
#include "make_head.hpp"
#include "method_checks.hpp"
#include "reference/reference.hpp"

namespace kvbench {

inline constexpr double kFloat = 1e-6;  // weights are float32

inline Compressed run(const KvHead& head, const std::vector<Index>& tokens, const Given& given,
                      std::uint64_t seed = 0, std::optional<Index> budget = {}) {
  static const Method m = method_clustergen();
  const Task task{head, tokens, budget, {0, 0}, {}, Rng(seed, {"p", 0, 0}, m.info.name)};
  return m.compress(task, Params(m.info.name, m.info.params, given));
}

inline Index bytes_of(const Compressed& c, const KvHead& head) {
  const auto pairs = static_cast<Index>(c.held.tokens.size());
  return c.payload_bytes.value_or(pairs * head.pair_bytes()) + c.aux_bytes;
}

inline Index diag(const Compressed& c, const std::string& key) {
  const auto at =
      std::find_if(c.diag.begin(), c.diag.end(), [&](const auto& x) { return x.first == key; });
  return at == c.diag.end() ? -1 : std::stoll(at->second);
}

inline bool same_set(const HeldTokens& a, const HeldTokens& b) {
  return a.tokens == b.tokens && a.weights == b.weights && a.common == b.common;
}

inline bool same(const Compressed& a, const Compressed& b) {
  return same_set(a.held, b.held) && a.denominator.has_value() == b.denominator.has_value() &&
         (!a.denominator || same_set(a.denominator->held, b.denominator->held)) &&
         a.aux_bytes == b.aux_bytes && a.payload_bytes == b.payload_bytes && a.diag == b.diag;
}

inline long double square(const KvHead& head, Index i) {
  const reference::Vec v = reference::rows_of(head.v)[i];
  return reference::dot(v, v);
}

// A head of `n` tokens with values of the given squared norms, keys at 0, 1, 2, ... of a line.
inline KvHead line(const std::vector<double>& squares) {
  const HeadShape shape{.n = static_cast<Index>(squares.size()), .nq = 1, .d = 2, .dv = 1};
  KvHead head = make_head(shape, 1);
  for (Index i = 0; i < shape.n; ++i) {
    head.k.row(i)[0] = static_cast<float>(i);
    head.k.row(i)[1] = 0.0F;
    head.v.row(i)[0] = static_cast<float>(std::sqrt(squares[i]));
  }
  return head;
}

// Slots that each entry stands for: weight / weight of one slot, a whole number.
inline Index slots_of(float weight, long double each) {
  const long double slots = static_cast<long double>(weight) / each;
  EXPECT_NEAR(static_cast<double>(slots), std::round(static_cast<double>(slots)),
              kFloat * static_cast<double>(slots));
  return std::lround(static_cast<double>(slots));
}

// Slots by token of a one-cluster denominator, and of the numerator.
inline std::map<Index, Index> key_slots(const Compressed& c, Index count, Index t) {
  std::map<Index, Index> out;
  for (std::size_t i = 0; i < c.denominator->held.tokens.size(); ++i) {
    out[c.denominator->held.tokens[i]] =
        slots_of(c.denominator->held.weight(i),
                 static_cast<long double>(count) / static_cast<long double>(t));
  }
  return out;
}

inline std::map<Index, Index> pair_slots(const Compressed& c, const KvHead& head, long double mu,
                                         Index samples) {
  std::map<Index, Index> out;
  for (std::size_t i = 0; i < c.held.tokens.size(); ++i) {
    const Index token = c.held.tokens[i];
    out[token] =
        slots_of(c.held.weight(i), mu / (static_cast<long double>(samples) * square(head, token)));
  }
  return out;
}

}  // namespace kvbench
