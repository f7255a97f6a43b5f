// For tests of methods that merge: held and made tokens against a reference's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/float16.hpp"
#include "method_checks.hpp"
#include "reference/merging.hpp"
#include "reference/selection.hpp"

namespace kvbench {

/// Float32 storage of a mean or a sum made in float64.
inline constexpr double kStoreTolerance = 1e-6;

/// Which tokens are exact, and the others' keys, values and weights in order of position.
inline void expect_merged(const Compressed& c, const std::map<Index, reference::Merged>& expected) {
  std::vector<Index> exact;
  Index row = 0;
  for (const auto& [token, m] : expected) {
    if (!m.changed) {
      exact.push_back(token);
      continue;
    }
    ASSERT_LT(row, c.made.k.rows());
    const auto near = [&, at = token](const reference::Vec& e, const float* got) {
      for (std::size_t t = 0; t < e.size(); ++t) {
        const auto x = static_cast<double>(e[t]);
        ASSERT_TRUE(std::abs(static_cast<double>(got[t]) - x) <=
                    kStoreTolerance * (1 + std::abs(x)))
            << at;
      }
    };
    near(m.k, c.made.k.row(row));
    near(m.v, c.made.v.row(row));
    ASSERT_EQ(c.made.weights.empty() ? 1.0F : c.made.weights[row], static_cast<float>(m.w));
    ++row;
  }
  ASSERT_EQ(row, c.made.k.rows());
  ASSERT_EQ(c.held.tokens, exact);
  ASSERT_TRUE(c.held.weights.empty());
  ASSERT_EQ(c.held.common, 1.0F);
}

/// The reference's accumulated attention of the job's tokens, mean over the group.
inline reference::Vec accumulated(const JobOf& job, Range scoring) {
  const reference::Vec all =
      reference::reduced(reference::attention_sums(job.head(), scoring.begin, scoring.end),
                         reference::ReferenceReduce::mean);
  reference::Vec out;
  for (const Index i : job.tokens()) {
    out.push_back(all[i]);
  }
  return out;
}

inline HeadShape merging_shape(Index n) {
  const HeadShape shape{.n = n, .nq = n, .dv = 5};
  return shape;
}

/// The weighted sums of keys and values held and made are those of all the task's tokens.
inline void check_sums_kept(const JobOf& job, const Compressed& c) {
  constexpr double kRounding = 1e-5;  // of some tens of float32 terms of size 1
  for (const auto& [all, made] :
       {std::pair{&job.head().k, &c.made.k}, {&job.head().v, &c.made.v}}) {
    for (Index t = 0; t < all->cols(); ++t) {
      double whole = 0.0;
      double left = 0.0;
      for (const Index i : job.tokens()) {
        whole += static_cast<double>(all->row(i)[t]);
      }
      for (const Index i : c.held.tokens) {
        left += static_cast<double>(all->row(i)[t]);
      }
      for (Index r = 0; r < made->rows(); ++r) {
        left += static_cast<double>(c.made.weights[r]) * static_cast<double>(made->row(r)[t]);
      }
      EXPECT_NEAR(left, whole, kRounding);
    }
  }
}

}  // namespace kvbench
