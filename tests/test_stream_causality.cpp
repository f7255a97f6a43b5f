// No stream method may look behind the position that has come: the views of every registered one do
// not change with the rows behind it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "algorithms/registry.hpp"
#include "make_head.hpp"

namespace kvbench::test_stream_causality {
namespace {

void expect_same(const Compressed& a, const Compressed& b, const std::string& what) {
  const auto same = [&](const HeldTokens& x, const HeldTokens& y) {
    EXPECT_EQ(x.tokens, y.tokens) << what;
    EXPECT_EQ(x.weights, y.weights) << what;
    EXPECT_EQ(x.common, y.common) << what;
  };
  const auto same_made = [&](const MadeTokens& x, const MadeTokens& y) {
    const auto bits = [](const Matrix& m) {
      return std::vector<float>(m.data(), m.data() + m.rows() * m.cols());
    };
    EXPECT_EQ(bits(x.k), bits(y.k)) << what;
    EXPECT_EQ(bits(x.v), bits(y.v)) << what;
    EXPECT_EQ(x.weights, y.weights) << what;
  };
  same(a.held, b.held);
  same_made(a.made, b.made);
  ASSERT_EQ(a.denominator.has_value(), b.denominator.has_value()) << what;
  if (a.denominator) {
    same(a.denominator->held, b.denominator->held);
    same_made(a.denominator->made, b.denominator->made);
  }
  EXPECT_EQ(a.aux_bytes, b.aux_bytes) << what;
  EXPECT_EQ(a.payload_bytes, b.payload_bytes) << what;
  EXPECT_EQ(a.diag, b.diag) << what;
}

// Parameters where the defaults do not fit so short a stream, or look at the stream as a whole when
// it opens, which the method's file says.
std::map<std::string, std::string> given_to(const std::string& name) {
  if (name == "clustergen") {
    return {{"delta", "2"}, {"samples", "20"}};
  }
  if (name == "quant-kivi") {
    return {{"residual", "8"}, {"bits", "4"}};
  }
  return {};
}

// A stream's length is known when it opens (budgets are fractions of it), its tokens are not: views
// at j may not change with the rows behind j.
TEST(StreamCausality, NoMethodLooksBehindThePositionThatHasCome) {
  HeadShape shape;
  shape.n = shape.nq = 200;
  shape.dtype = DType::float16;
  const KvHead head = make_head(shape, 7);
  int tried = 0;
  for (const Method& m : methods()) {
    if (m.open_stream == nullptr) {
      continue;
    }
    ++tried;
    const Params params(m.info.name, m.info.params, given_to(m.info.name));
    const bool sized = std::any_of(m.info.sizes.begin(), m.info.sizes.end(),
                                   [&](const std::string& s) { return !params.is_auto(s); });
    for (const auto& window : {std::pair<Index, Index>{0, 0}, {0, 9}, {6, 0}, {6, 9}, {20, 9}}) {
      const Index sink = window.first;
      const Index recent = window.second;
      for (const Index j : {0, 5, 40, 150}) {
        StreamTask task{
            head,          recent, 100 * head.pair_bytes(), Rng(1, {"p", 0, 0}, m.info.name),
            cpu_backend(), sink};
        if (sized) {
          task.budget_bytes = std::nullopt;
        }
        KvHead other = make_head(shape, 8);
        const auto take = [&](Matrix& to, const Matrix& from) {
          std::copy_n(from.data(), (j + 1) * from.cols(), to.data());
        };
        take(other.k, head.k);
        take(other.v, head.v);
        for (std::size_t g = 0; g < head.q.size(); ++g) {
          take(other.q[g], head.q[g]);
        }
        const auto view = [&](const KvHead& of) {
          const auto cache =
              m.open_stream({of, recent, task.budget_bytes, task.rng, cpu_backend(), sink}, params);
          for (Index i = 0; i <= j; ++i) {
            cache->append(i, i - recent >= sink ? i - recent : -1);
          }
          return cache->view();
        };
        expect_same(view(head), view(other),
                    m.info.name + " sink " + std::to_string(sink) + " recent " +
                        std::to_string(recent) + " at " + std::to_string(j));
      }
    }
  }
  EXPECT_GE(tried, 5);
}

}  // namespace
}  // namespace kvbench::test_stream_causality
