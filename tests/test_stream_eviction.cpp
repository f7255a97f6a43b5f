// The streams of h2o, cam and tova against step-by-step references, their memory, and causality.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "algorithms/contract.hpp"
#include "algorithms/methods.hpp"
#include "core/error.hpp"
#include "make_head.hpp"
#include "reference/eviction.hpp"
#include "reference/reference.hpp"

namespace kvbench::test_stream_eviction {
namespace {

using Given = std::map<std::string, std::string>;

// Values are merged in float32 storage, one rounding per merge.
constexpr double kStoreTolerance = 1e-5;

std::unique_ptr<StreamCache> open(const Method& m, const KvHead& head, const Given& given,
                                  std::optional<Index> budget = {}, Index recent = 0,
                                  Index sink = 0) {
  return m.open_stream(
      {head, recent, budget, Rng(1, {"p", 0, 0}, m.info.name), cpu_backend(), sink},
      Params(m.info.name, m.info.params, given));
}

KvHead head_of(Index n, unsigned seed) {
  HeadShape shape;
  shape.n = shape.nq = n;
  shape.dv = 5;
  return make_head(shape, seed);
}

Index leaving(Index j, Index recent, Index sink = 0) {
  return j - recent >= sink ? j - recent : -1;
}

struct Exact {
  Index sink, recent;
};
// Sinks none, fewer and more than the window; nearly all tokens; all of them.
constexpr Exact kExact[] = {{0, 0}, {0, 7}, {3, 0}, {3, 7}, {20, 7}, {50, 9}, {60, 7}, {70, 0}};

class StreamEvictionIn : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(Both, StreamEvictionIn,
                         testing::Values(Precision::float32, Precision::float64));

TEST_P(StreamEvictionIn, H2oEqualsTheReferenceAtEveryStep) {
  KvHead head = head_of(60, 1);
  head.precision = GetParam();
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {0, 1, 2, 11, 53}) {
      for (const double ratio : {0.0, 0.5, 1.0}) {
        for (const char* reduce : {"mean", "max"}) {
          reference::EvictionReference reference;
          reference.kept = std::clamp<Index>(60 - recent - sink, 0, kept);
          reference.heavy =
              static_cast<Index>(std::floor(ratio * static_cast<double>(reference.kept)));
          reference.window = recent;
          reference.sink = sink;
          reference.largest = std::string(reduce) == "max";
          const auto cache = open(method_h2o(), head,
                                  {{"tokens", std::to_string(kept)},
                                   {"heavy_ratio", std::to_string(ratio)},
                                   {"reduce", reduce}},
                                  {}, recent, sink);
          for (Index j = 0; j < 60; ++j) {
            cache->append(j, leaving(j, recent, sink));
            reference.step(head, j);
            const Compressed c = cache->view();
            ASSERT_EQ(c.held.tokens, reference.outside(j)) << j;
            ASSERT_EQ(c.aux_bytes, 4 * static_cast<Index>(reference.score.size()));
          }
        }
      }
    }
  }
}

TEST(StreamEviction, CamEqualsTheReferenceAtEveryStep) {
  const KvHead head = head_of(60, 2);
  const RngStream draws = Rng(1, {"p", 0, 0}, "cam").stream("merge");
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {1, 11, 40}) {
      for (const Index merge : {1, 4, 32}) {
        reference::EvictionReference reference;
        reference.kept = std::clamp<Index>(60 - recent - sink, 0, kept);
        reference.heavy = reference.kept / 2;
        reference.window = recent;
        reference.sink = sink;
        std::map<Index, reference::Vec> values;  // of all tokens, as they stand
        std::map<Index, bool> changed;
        for (Index i = 0; i < 60; ++i) {
          values[i] = reference::rows_of(head.v)[i];
        }
        const auto cache = open(
            method_cam(), head,
            {{"tokens", std::to_string(kept)}, {"merge", std::to_string(merge)}}, {}, recent, sink);
        for (Index j = 0; j < 60; ++j) {
          cache->append(j, leaving(j, recent, sink));
          const auto [evicted, score] = reference.step(head, j);
          std::vector<Index> behind;
          reference::Real sum = 0;
          for (const Index i : reference.outside(j)) {
            if (evicted >= 0 && i > evicted && static_cast<Index>(behind.size()) < merge) {
              behind.push_back(i);
              sum += static_cast<reference::Real>(reference.score[i]);
            }
          }
          const auto width = static_cast<reference::Real>(behind.size());
          if (!behind.empty() &&
              static_cast<reference::Real>(draws.uniform(static_cast<std::uint64_t>(evicted))) <
                  static_cast<reference::Real>(score) / (sum / width)) {
            for (const Index i : behind) {
              for (std::size_t t = 0; t < 5; ++t) {
                values[i][t] += values[evicted][t] / width;
              }
              changed[i] = true;
            }
          }
          const Compressed c = cache->view();
          std::vector<Index> exact;
          Index row = 0;
          for (const Index i : reference.outside(j)) {
            if (!changed[i]) {
              exact.push_back(i);
              continue;
            }
            ASSERT_LT(row, c.made.v.rows());
            ASSERT_TRUE(std::equal(head.k.row(i), head.k.row(i) + 8, c.made.k.row(row)));
            for (std::size_t t = 0; t < 5; ++t) {
              const auto e = static_cast<double>(values[i][t]);
              ASSERT_TRUE(std::abs(static_cast<double>(c.made.v.row(row)[t]) - e) <=
                          kStoreTolerance * (1.0 + std::abs(e)));
            }
            ++row;
          }
          ASSERT_EQ(c.held.tokens, exact) << j;
          ASSERT_EQ(c.made.v.rows(), row);
          ASSERT_EQ(c.aux_bytes, 4 * static_cast<Index>(reference.score.size()));
        }
      }
    }
  }
}

// TOVA by its definition: the token with the smallest softmax weight of this step goes.
TEST(StreamEviction, TovaEqualsItsDefinitionAtEveryStep) {
  const KvHead head = head_of(60, 8);
  const reference::Rows k = reference::rows_of(head.k);
  for (const auto& [sink, recent] : kExact) {
    for (const Index kept : {0, 1, 11, 53}) {
      const auto cache =
          open(method_tova(), head, {{"tokens", std::to_string(kept)}}, {}, recent, sink);
      std::vector<Index> held;  // sinks too
      for (Index j = 0; j < 60; ++j) {
        cache->append(j, leaving(j, recent, sink));
        held.push_back(j);
        std::map<Index, reference::Real> weight;
        for (const Matrix& queries : head.q) {
          const reference::Vec q = reference::rows_of(queries)[j];
          const auto term = [&](Index i) {
            return std::exp(static_cast<reference::Real>(head.scale) * reference::dot(k[i], q));
          };
          reference::Real sum = 0;
          for (const Index i : held) {
            sum += term(i);
          }
          for (const Index i : held) {
            weight[i] += term(i) / sum;
          }
        }
        std::vector<Index> outside;
        for (const Index i : held) {
          if (i >= sink && i <= j - recent) {
            outside.push_back(i);
          }
        }
        if (static_cast<Index>(outside.size()) > kept) {
          const auto least =
              std::min_element(outside.begin(), outside.end(),
                               [&](Index a, Index b) { return weight[a] < weight[b]; });
          held.erase(std::find(held.begin(), held.end(), *least));
          outside.erase(least);
        }
        ASSERT_EQ(cache->view().held.tokens, outside) << j;
        ASSERT_EQ(cache->view().aux_bytes, 0);
      }
    }
  }
}

TEST(StreamEviction, NeverMoreThanTheBudgetAndNothingBehindThePosition) {
  KvHead head = head_of(90, 3);
  head.dtype = DType::float16;
  KvHead other = head_of(90, 4);
  other.dtype = DType::float16;
  for (Index i = 0; i < 70; ++i) {
    std::copy_n(head.k.row(i), 8, other.k.row(i));
    std::copy_n(head.v.row(i), 5, other.v.row(i));
    for (std::size_t g = 0; g < head.q.size(); ++g) {
      std::copy_n(head.q[g].row(i), 8, other.q[g].row(i));
    }
  }
  const Index pair = head.pair_bytes();
  for (const Method& m : {method_h2o(), method_cam(), method_tova()}) {
    for (const auto& [sink, recent] :
         {Exact{0, 0}, Exact{0, 10}, Exact{0, 90}, Exact{0, 200}, Exact{16, 0}, Exact{16, 10},
          Exact{16, 80}, Exact{100, 10}, Exact{16, 200}}) {
      for (const double rho : {0.0, 0.02, 0.1, 0.5, 1.0, 2.0}) {
        const auto budget = static_cast<Index>(rho * static_cast<double>(90 * pair));
        // h2o and cam keep a score of 4 bytes for every token but sinks, the window's included;
        // tova none.
        const Index score = m.info.name == "tova" ? 0 : 4;
        const Index others = 90 - std::min<Index>(sink, 90);
        const Index window = std::min<Index>(recent, others);
        if (budget < score * window) {
          EXPECT_THROW(open(m, head, {}, budget, recent, sink), Infeasible);
          continue;
        }
        const auto a = open(m, head, {}, budget, recent, sink);
        const auto b = open(m, other, {}, budget, recent, sink);
        Compressed c;
        for (Index j = 0; j < 70; ++j) {
          a->append(j, leaving(j, recent, sink));
          b->append(j, leaving(j, recent, sink));
          c = a->view();
          ASSERT_LE(
              (static_cast<Index>(c.held.tokens.size()) + c.made.k.rows()) * pair + c.aux_bytes,
              budget);
        }
        EXPECT_EQ(c.held.tokens, b->view().held.tokens);
        const Index fits = std::min(others - window, (budget - score * window) / (pair + score));
        EXPECT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(),
                  std::min(fits, std::max<Index>(0, 70 - recent - sink)));
      }
    }
    EXPECT_THROW(open(m, head, {}), InputError);
  }
}

// Zero queries give equal weights to all: of equal ones the latest goes, so tova keeps the first.
TEST(StreamEviction, OddInputsGiveDefinedResults) {
  KvHead zero = head_of(40, 5);
  for (Matrix& q : zero.q) {
    std::fill_n(q.data(), 40 * 8, 0.0F);
  }
  KvHead huge = head_of(40, 6);
  for (Index i = 0; i < 40 * 8; ++i) {
    huge.k.data()[i] *= 1000.0F;
  }
  KvHead same = head_of(40, 7);
  for (Index i = 1; i < 40; ++i) {
    std::copy_n(same.k.row(0), 8, same.k.row(i));
  }
  const std::vector<KvHead> heads = {zero, huge, same};
  for (const KvHead& head : heads) {
    for (const Method& m : {method_h2o(), method_cam(), method_tova()}) {
      for (const char* kept : {"0", "1", "10"}) {
        const auto cache = open(m, head, {{"tokens", kept}}, {}, 3);
        for (Index j = 0; j < 40; ++j) {
          cache->append(j, leaving(j, 3));
        }
        const Compressed c = cache->view();
        EXPECT_EQ(static_cast<Index>(c.held.tokens.size()) + c.made.k.rows(), std::stoll(kept));
        if (m.info.name == "tova" && &head == &heads[0]) {
          EXPECT_EQ(c.held.tokens, positions(0, std::stoll(kept)));
        }
        for (Index i = 0; i < c.made.v.rows() * 5; ++i) {
          EXPECT_TRUE(std::isfinite(c.made.v.data()[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbench::test_stream_eviction
