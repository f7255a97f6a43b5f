// pyramidkv: layer budgets against exact rational arithmetic, their sum, bounds and order.
#include <numeric>

#include "layer_job.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_pyramidkv {
namespace {

std::vector<Survey> layers_of(Index layers, Index kv_heads, Index middle, Index tokens) {
  std::vector<Survey> out;
  for (Index l = 0; l < layers; ++l) {
    for (Index h = 0; h < kv_heads; ++h) {
      Survey s{.tokens = tokens, .layer = l, .kv_head = h, .middle = middle, .pair_bytes = 64};
      out.push_back(s);
    }
  }
  return out;
}

std::vector<Index> tokens_of(const std::vector<Survey>& surveys, Index beta) {
  return shared_tokens("pyramidkv", surveys, {{"beta", std::to_string(beta)}});
}

Index sum_of(const std::vector<Index>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), Index{0});
}

// Everything times beta (L - 1), so that all are integers.
std::vector<Index> reference_budgets(Index layers, Index middle, Index b, Index beta) {
  if (layers == 1) {
    return {b};
  }
  const Index first = std::min(2 * b * beta - b, middle * beta);  // times beta
  const Index last = 2 * b * beta - first;
  const Index unit = beta * (layers - 1);
  std::vector<Index> out;
  std::vector<Index> remainder;
  Index left = layers * b;
  for (Index l = 0; l < layers; ++l) {
    const Index exact = first * (layers - 1 - l) + last * l;  // times beta (L - 1)
    out.push_back(exact / unit);
    remainder.push_back(exact % unit);
    left -= out.back();
  }
  for (; left > 0; --left) {
    const auto most = std::max_element(remainder.begin(), remainder.end());
    out[most - remainder.begin()] += 1;
    *most = -1;
  }
  return out;
}

TEST(PyramidKv, BudgetsEqualRationalArithmetic) {
  for (const Index layers : {1, 2, 3, 4, 7, 32}) {
    for (const Index middle : {0, 1, 2, 10, 100, 777}) {
      for (const Index beta : {1, 2, 7, 20}) {
        for (Index b = 0; b <= middle; b += 1 + middle / 37) {
          const std::vector<Index> got = tokens_of(layers_of(layers, 1, middle, b), beta);
          ASSERT_EQ(got, reference_budgets(layers, middle, b, beta))
              << layers << " " << middle << " " << beta << " " << b;
          ASSERT_EQ(sum_of(got), layers * b);
          for (const Index x : got) {
            ASSERT_GE(x, 0);
            ASSERT_LE(x, middle);
          }
        }
      }
    }
  }
}

TEST(PyramidKv, AnyBetaGivesTheWholeSum) {
  for (const char* beta : {"1.0000000001", "1.3333333333", "3.141592653589793", "1000000000"}) {
    for (const Index layers : {2, 3, 33, 80}) {
      for (Index b = 0; b <= 500; b += 7) {
        const std::vector<Index> got =
            shared_tokens("pyramidkv", layers_of(layers, 1, 500, b), {{"beta", beta}});
        for (std::size_t l = 1; l < got.size(); ++l) {
          EXPECT_LE(got[l], got[l - 1] + 1);  // falling, but for the last token of the rounding
        }
        ASSERT_EQ(sum_of(got), layers * b) << beta << " " << layers;
      }
    }
  }
}

TEST(PyramidKv, EachKvHeadApart) {
  std::vector<Survey> surveys = layers_of(3, 2, 60, 10);
  for (Survey& s : surveys) {
    s.tokens = s.kv_head == 0 ? 10 : 20;
  }
  const std::vector<Index> got = tokens_of(surveys, 20);
  const std::vector<Index> a = reference_budgets(3, 60, 10, 20);
  const std::vector<Index> b = reference_budgets(3, 60, 20, 20);
  EXPECT_EQ(got, (std::vector<Index>{a[0], b[0], a[1], b[1], a[2], b[2]}));
}

TEST(PyramidKv, LayersOfUnequalRoomLoseNoTokens) {
  std::mt19937_64 generator(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Survey> surveys = layers_of(1 + round % 6, 1, 0, 0);
    Index total = 0;
    for (Survey& s : surveys) {
      s.middle = static_cast<Index>(generator() % 40);
      s.tokens = static_cast<Index>(generator() % static_cast<std::uint64_t>(s.middle + 1));
      total += s.tokens;
    }
    const std::vector<Index> got = tokens_of(surveys, 20);
    ASSERT_EQ(sum_of(got), total);
    for (std::size_t l = 0; l < got.size(); ++l) {
      ASSERT_GE(got[l], 0);
      ASSERT_LE(got[l], surveys[l].middle);
    }
  }
}

TEST(PyramidKv, KeepsSnapKvsTokens) {
  std::vector<KvHead> heads;
  for (unsigned i = 0; i < 6; ++i) {  // 3 layers of 2
    heads.push_back(make_head({}, 70 + i));
  }
  const SharedJob job("pyramidkv", heads, 2, positions(5, 50), {10, 60});
  const auto got = job.run(11 * heads[0].pair_bytes());
  const std::vector<Index> budgets = reference_budgets(3, 45, 11, 20);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[i], JobOf("snapkv", heads[i], positions(5, 50), {10, 60}).kept(budgets[i / 2]));
  }
}

}  // namespace
}  // namespace kvbench::test_pyramidkv
