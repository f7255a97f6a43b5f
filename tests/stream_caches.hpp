// Stream caches made for tests: their views follow from the positions that have left the window and
// are no sinks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench::testing_stream {

/// A function of what has left the window by position j, sinks not among it.
using View = Compressed (*)(const StreamTask& task, const std::vector<Index>& left, Index j);

class MadeCache final : public StreamCache {
 public:
  MadeCache(const StreamTask& task, View shown) : task_(task), view_(shown) {}

  void append(Index j, Index leaving) override {
    // The protocol itself: every position once, and each leaves when the window has moved on.
    EXPECT_EQ(j, last_ + 1);
    EXPECT_EQ(leaving, j - task_.recent >= task_.sink ? j - task_.recent : -1);
    last_ = j;
    if (leaving >= 0) {
      left_.push_back(leaving);
    }
  }
  Compressed view() const override { return view_(task_, left_, last_); }

 private:
  StreamTask task_;
  View view_;
  Index last_ = -1;
  std::vector<Index> left_;
};

template <View shown>
Method made_method() {
  Method m;
  m.info.name = "made-up";
  m.open_stream = [](const StreamTask& task, const Params&) -> std::unique_ptr<StreamCache> {
    return std::make_unique<MadeCache>(task, shown);
  };
  return m;
}

inline Compressed keep_all(const StreamTask&, const std::vector<Index>& left, Index) {
  Compressed c;
  c.held.tokens = left;
  return c;
}

inline Compressed keep_none(const StreamTask&, const std::vector<Index>&, Index) {
  return {};
}

/// Everything that the contract allows: other tokens at each step, weights, made entries, and a
/// denominator of its own.
inline Compressed everything(const StreamTask& task, const std::vector<Index>& left, Index j) {
  Compressed c;
  c.denominator = Denominator{};
  for (const Index i : left) {
    if ((i + j) % 3 == 0) {
      c.held.tokens.push_back(i);
      c.held.weights.push_back(0.5F + static_cast<float>(i % 4));
    } else if (i % 2 == 0) {
      c.denominator->held.tokens.push_back(i);
    }
  }
  c.denominator->held.common = 1.5F;
  c.made.k = Matrix(1, task.head.d());
  c.made.v = Matrix(1, task.head.dv());
  c.made.k.row(0)[0] = 0.25F;
  c.made.v.row(0)[1] = static_cast<float>(left.size());
  c.denominator->made.k = c.made.k;
  c.denominator->made.weights = {2.0F};
  c.aux_bytes = 4 * static_cast<Index>(c.held.tokens.size()) + (j == 23 ? 900 : 0);
  c.transient_bytes = 100 - j;
  c.diag = {{"left", std::to_string(left.size())}, {"last", std::to_string(j)}};
  return c;
}

/// In its budget but for one evaluated step in the middle of the stream.
inline Compressed greedy_once(const StreamTask& task, const std::vector<Index>&, Index j) {
  Compressed c;
  c.aux_bytes = task.budget_bytes.value_or(0) + (j == 23 ? 1 : 0);
  return c;
}

/// Holds a token that is still in the window.
inline Compressed ahead(const StreamTask&, const std::vector<Index>&, Index j) {
  Compressed c;
  c.held.tokens = {j};
  return c;
}

/// Holds the first token once it has left the window.
inline Compressed first(const StreamTask& task, const std::vector<Index>&, Index j) {
  Compressed c;
  if (j >= task.recent) {
    c.held.tokens = {0};
  }
  return c;
}

inline Compressed throws_late(const StreamTask& task, const std::vector<Index>& left, Index j) {
  if (j >= 20) {
    throw std::runtime_error("two\nlines");
  }
  return keep_all(task, left, j);
}

}  // namespace kvbench::testing_stream
