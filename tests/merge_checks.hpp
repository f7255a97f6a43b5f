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
  HeadShape shape;
  shape.n = shape.nq = n;
  shape.dv = 5;
  return shape;
}

/// Never more than the budget, with `extra` bytes beside each pair; what is made lies at the
/// element type. `fewer`: the method may hold fewer entries than fit.
inline void check_merging_budgets(const Method& method, Index extra, bool fewer = false) {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    HeadShape shape = merging_shape(150);
    shape.dtype = dtype;
    for (const Index m : {1, 2, 3, 20, 100}) {
      const std::vector<Index> tokens = gappy(10, 10 + m);
      KvHead head = make_head(shape, 21);
      for (Matrix* matrix : {&head.k, &head.v}) {  // as a trace of this type holds them
        for (Index i = 0; i < matrix->rows() * matrix->cols(); ++i) {
          matrix->data()[i] = round_to(dtype, matrix->data()[i]);
        }
      }
      const JobOf job(method, head, tokens, {90, 140});
      const auto count = static_cast<Index>(tokens.size());
      const Index each = job.head().pair_bytes() + extra;
      for (Index budget = 0; budget <= (count + 2) * each; budget += 1 + each / 3) {
        const Compressed c = job.run(budget);
        ASSERT_LE(middle_bytes_of(c, job.head()), budget);
        const Index held = static_cast<Index>(c.held.tokens.size()) + c.made.k.rows();
        const Index most = std::min(count, budget / each);
        ASSERT_TRUE(held == most || (fewer && held <= most));
        ASSERT_TRUE(most == 0 || held > 0);
        for (const Matrix* made : {&c.made.k, &c.made.v}) {
          for (Index i = 0; i < made->rows() * made->cols(); ++i) {
            ASSERT_EQ(made->data()[i], round_to(dtype, made->data()[i]));
          }
        }
      }
    }
  }
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

/// Sums beyond the largest half stay finite.
inline void check_huge_values(const Method& method) {
  HeadShape shape = merging_shape(30);
  shape.dtype = DType::float16;
  shape.value_norm = 100000.0;
  KvHead head = make_head(shape, 8);
  for (Index i = 0; i < 30 * 5; ++i) {
    head.v.data()[i] = std::clamp(head.v.data()[i], -65504.0F, 65504.0F);
  }
  const JobOf job(method, head, positions(0, 30), {0, 30});
  const Compressed c = job.run({}, {{"tokens", "3"}});
  for (Index i = 0; i < c.made.v.rows() * 5; ++i) {
    ASSERT_TRUE(std::isfinite(c.made.v.data()[i]));
  }
}

}  // namespace kvbench
