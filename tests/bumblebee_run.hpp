// bumblebee run on a head, odd heads for it, and its reference's objective on them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "make_head.hpp"
#include "reference/bumblebee.hpp"

namespace kvbench {

namespace testing_bumblebee {

using Given = std::map<std::string, std::string>;

struct Outcome {
  std::vector<Index> tokens;
  Index evaluations = 0;
};

inline Outcome run_scored(const KvHead& head, const std::vector<Index>& tokens, Range scoring,
                          const Given& given, std::optional<Index> budget = {},
                          std::uint64_t seed = 0) {
  const Method method = method_bumblebee();
  const ScoreBook book(head);
  Given all = given;
  all.try_emplace("recent_share", "0");  // the bare objective unless a test says more
  Task task{head, tokens, budget, scoring, {}, Rng(seed, {"p", 0, 0}, "bumblebee")};
  task.scores = &book;
  const Compressed c = method.compress(task, Params("bumblebee", method.info.params, all));
  EXPECT_TRUE(c.held.weights.empty());
  EXPECT_EQ(c.held.common, 1.0F);
  EXPECT_EQ(c.aux_bytes, 0);
  EXPECT_EQ(c.diag.size(), 1U);
  EXPECT_EQ(c.diag[0].first, "gain_evaluations");
  EXPECT_TRUE(std::is_sorted(c.held.tokens.begin(), c.held.tokens.end()));
  EXPECT_EQ(std::adjacent_find(c.held.tokens.begin(), c.held.tokens.end()), c.held.tokens.end());
  EXPECT_TRUE(
      std::includes(tokens.begin(), tokens.end(), c.held.tokens.begin(), c.held.tokens.end()));
  return {c.held.tokens, std::stoll(c.diag[0].second)};
}

inline Outcome run(const KvHead& head, const std::vector<Index>& tokens, const Given& given,
                   Index count) {
  Given all = given;
  all["tokens"] = std::to_string(count);
  return run_scored(head, tokens, {0, head.n()}, all);
}

// Few distinct keys, some of them zero; where `flat`, queries of zero that see all alike, so that
// scores tie too.
inline KvHead tied_head(Index n, unsigned seed, bool flat) {
  KvHead head = make_head({.n = n, .nq = n, .d = 4}, seed);
  std::mt19937_64 generator(seed);
  for (Index i = 1; i < n; ++i) {
    const auto dice = generator() % 4;
    if (dice < 3) {
      const auto from = static_cast<Index>(generator() % static_cast<std::uint64_t>(i));
      std::copy_n(head.k.row(from), 4, head.k.row(i));
    }
    if (generator() % 10 == 0) {
      std::fill_n(head.k.row(i), 4, 0.0F);
    }
  }
  for (Matrix& q : head.q) {
    if (flat) {
      std::fill_n(q.data(), q.rows() * q.cols(), 0.0F);
    }
  }
  return head;
}

// The reference's mixture over `tokens`, with attention from its own exact softmax.
inline reference::Mixture mixture(const KvHead& head, const std::vector<Index>& tokens,
                                  Range scoring, reference::Sim sim, long double lambda, bool power,
                                  bool grid = true) {
  reference::Mixture g;
  reference::Rows keys;
  const reference::Rows all = reference::rows_of(head.k);
  for (const Index i : tokens) {
    keys.push_back(all[i]);
  }
  g.sim = reference::similarities(keys, sim, grid);
  g.acc.assign(tokens.size(), 0);
  for (Index group = 0; group < head.group(); ++group) {
    for (Index j = std::max(scoring.begin, head.q_start()); j < scoring.end; ++j) {
      const reference::Attention a = reference::attention(head, group, j);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        g.acc[i] += a.p[tokens[i]] / static_cast<long double>(head.group());
      }
    }
  }
  g.lambda = lambda;
  g.phi.power = power;
  return g;
}

inline const std::pair<const char*, reference::Sim> kSims[] = {
    {"relu", reference::Sim::relu},
    {"one-plus", reference::Sim::one_plus},
    {"abs", reference::Sim::absolute}};

inline std::vector<Index> at(const std::vector<Index>& tokens, std::vector<Index> places) {
  for (Index& i : places) {
    i = tokens[i];
  }
  return places;
}

inline std::vector<Index> sorted(std::vector<Index> v) {
  std::sort(v.begin(), v.end());
  return v;
}

}  // namespace testing_bumblebee
}  // namespace kvbench
