// Every registered stream method, unasked: budgets at every moment, odd inputs, seeds, and that
// none looks behind the position that has come.
#include "stream_of.hpp"

namespace kvbench::test_streams {
namespace {

std::vector<std::string> specs() {
  std::vector<std::string> out;
  for (const Method& m : methods()) {
    if (m.open_stream != nullptr) {
      out.push_back(m.info.name);
    }
  }
  for (const char* setting :
       {"balancekv-stream:step=self;center=none", "balancekv-stream:step=theory;fill=order",
        "balancekv-stream:step=repo", "balancekv-stream:t=8;step=fixed",
        "bumblebee-stream:lambda=0", "bumblebee-stream:lambda=1;sim=abs", "cam:merge=4",
        "clustergen:delta=2;samples=20", "h2o:heavy_ratio=0;reduce=max",
        "kvreviver:estimate=mean;slack=3", "quant-kivi:residual=0", "quant-kivi:residual=8;bits=4",
        "rkv:buffer=5"}) {
    out.emplace_back(setting);
  }
  return out;
}

class EveryStream : public ::testing::TestWithParam<std::string> {
 protected:
  EveryStream() : spec_(parsed_spec(GetParam())) {}

  const MethodInfo& info() const { return find_method(spec_.name).info; }
  bool sized() const {
    return spec_.name == "exact" || std::ranges::any_of(info().sizes, [&](const auto& s) {
             return spec_.given.contains(s);
           });
  }
  StreamOf open(const KvHead& head, ExactTokens exact, Index budget, std::uint64_t seed = 1) const {
    return {spec_.name, head, spec_.given, exact, sized() ? std::nullopt : std::optional(budget),
            seed};
  }

  MethodSpec spec_;
};

INSTANTIATE_TEST_SUITE_P(Registry, EveryStream, ::testing::ValuesIn(specs()), spec_name);

KvHead stream_head(unsigned seed, Index n, DType dtype = DType::float16) {
  KvHead head = make_head({.n = n, .nq = n, .dv = 4, .dtype = dtype}, seed);
  for (Index i = 0; i < n; ++i) {  // values of many sizes
    for (Index c = 0; c < 4; ++c) {
      head.v.row(i)[c] *= static_cast<float>(std::exp2(2.0 * std::sin(static_cast<double>(i))));
    }
  }
  round_to(dtype, head.k.data(), n * 8);
  round_to(dtype, head.v.data(), n * 4);
  return head;
}

// Most tokens that methods hold which use what they are given: bytes of an entry, of a token of
// the window, and of the whole.
struct Price {
  Index each = 0, window = 0, once = 0;
};
const std::map<std::string, Price> kPrices = {{"local", {}},
                                              {"streamingllm", {}},
                                              {"random-local", {}},
                                              {"uniform", {0, 0, 4}},
                                              {"tova", {}},
                                              {"h2o", {4, 4, 0}},
                                              {"h2o:heavy_ratio=0;reduce=max", {4, 4, 0}},
                                              {"cam", {4, 4, 0}},
                                              {"cam:merge=4", {4, 4, 0}},
                                              {"bumblebee-stream", {16, 0, 0}},
                                              {"bumblebee-stream:lambda=0", {8, 0, 0}},
                                              {"bumblebee-stream:lambda=1;sim=abs", {12, 0, 0}}};

constexpr ExactTokens kExact[] = {{0, 0},  {0, 10},  {0, 60},  {0, 100}, {0, 200},
                                  {16, 0}, {16, 10}, {40, 50}, {16, 84}, {200, 10}};

TEST_P(EveryStream, HoldsItsBudgetAtEveryMomentAndUsesIt) {
  if (sized()) {
    GTEST_SKIP() << "its size is its own";
  }
  Index feasible = 0;
  for (const DType dtype : {DType::float16, DType::float32}) {
    const KvHead head = stream_head(6, 100, dtype);
    const Index pair = head.pair_bytes();
    for (const ExactTokens& exact : kExact) {
      const Index others = std::max<Index>(0, 100 - exact.sink);
      for (const double rho : {0.0, 0.01, 0.05, 0.1, 0.33, 0.5, 0.8, 1.0, 2.0}) {
        const auto budget = static_cast<Index>(rho * static_cast<double>(100 * pair));
        Index most = 0;
        Index step = -1;
        try {
          StreamOf stream = open(head, exact, budget);
          for (step = 0; step < 100; ++step) {
            stream.step();
            const Compressed c = stream.view();
            ASSERT_LE(middle_bytes_of(c, head), budget) << step;
            const Index held = static_cast<Index>(c.held.tokens.size()) + c.made.k.rows();
            ASSERT_LE(held, stream.left());
            most = std::max(most, held);
          }
        } catch (const Infeasible& e) {
          ASSERT_GT(e.needed_bytes(), budget);
          if (step < 0) {
            ASSERT_NO_THROW(open(head, exact, e.needed_bytes()));
          }
          continue;
        }
        ++feasible;
        if (const auto price = kPrices.find(GetParam()); price != kPrices.end()) {
          const auto& [each, window, once] = price->second;
          const Index recent = std::min(exact.recent, others);
          EXPECT_EQ(most,
                    std::min(others - recent, (budget - once - window * recent) / (pair + each)))
              << exact.sink << " " << exact.recent << " " << rho;
        }
      }
    }
  }
  EXPECT_GT(feasible, 60);
}

TEST_P(EveryStream, OddInputsGiveDefinedResults) {
  std::vector<KvHead> heads = odd_heads();
  heads.push_back(make_head({.n = 1, .nq = 1, .dv = 4}, 4));
  heads.push_back(heads.front());
  for (Matrix& q : heads.back().q) {
    std::fill_n(q.data(), 40 * 8, 0.0F);
  }
  for (const KvHead& head : heads) {
    for (const double rho : {0.0, 0.7, 2.0}) {
      const auto budget = static_cast<Index>(rho * static_cast<double>(40 * head.pair_bytes()));
      try {
        open(head, {0, 3}, budget).run();
      } catch (const Infeasible& e) {
        EXPECT_LT(budget, e.needed_bytes());
        EXPECT_LT(rho, 2.0);
      }
    }
  }
}

TEST_P(EveryStream, SameSeedSameResultAndSeedsMatterOnlyIfSaid) {
  const KvHead head = stream_head(8, 300);
  const auto held = [&](std::uint64_t seed) {
    return open(head, {}, 260 * head.pair_bytes(), seed).run();
  };
  const Compressed first = held(1);
  EXPECT_TRUE(same(held(1), first));
  bool differs = false;
  for (std::uint64_t seed = 2; seed < 10; ++seed) {
    differs = differs || !same(held(seed), first);
  }
  EXPECT_EQ(differs, info().facts(Params(spec_.name, info().params, spec_.given)).random);
}

TEST_P(EveryStream, WithoutASizeItRefuses) {
  if (!sized()) {
    EXPECT_THROW(StreamOf(spec_.name, stream_head(1, 10), spec_.given), InputError);
  }
}

// A stream's length is known when it opens (budgets are fractions of it), its tokens are not: views
// at j may not change with the rows behind j. clustergen with a budget looks at the stream as a
// whole when it opens, which its file says.
TEST_P(EveryStream, LooksAtNothingBehindThePosition) {
  if (GetParam() == "clustergen") {
    GTEST_SKIP();
  }
  const KvHead head = stream_head(7, 300);
  for (const ExactTokens& exact : {ExactTokens{0, 0}, {0, 9}, {6, 0}, {6, 9}, {20, 9}}) {
    for (const Index j : {0, 5, 40, 200}) {
      KvHead other = stream_head(8, 300);
      const auto take = [&](Matrix& to, const Matrix& from) {
        std::copy_n(from.data(), (j + 1) * from.cols(), to.data());
      };
      take(other.k, head.k);
      take(other.v, head.v);
      for (std::size_t g = 0; g < head.q.size(); ++g) {
        take(other.q[g], head.q[g]);
      }
      const Index budget = 260 * head.pair_bytes();
      EXPECT_TRUE(same(open(head, exact, budget).run(j + 1), open(other, exact, budget).run(j + 1)))
          << "sink " << exact.sink << " recent " << exact.recent << " at " << j;
    }
  }
}

}  // namespace
}  // namespace kvbench::test_streams
