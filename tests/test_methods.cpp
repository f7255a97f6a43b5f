// Every registered method, unasked: what the contract promises for any size and odd input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "algorithms/registry.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"
#include "make_extra.hpp"
#include "make_head.hpp"
#include "make_trace.hpp"
#include "method_checks.hpp"
#include "metrics/memory.hpp"
#include "reference/reference.hpp"
#include "refusal.hpp"
#include "replay/job.hpp"
#include "replay/windows.hpp"

namespace kvbench::test_methods {
namespace {

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Method& m : methods()) {
    if (m.compress != nullptr) {
      names.push_back(m.info.name);
    }
  }
  return names;
}

class EveryMethod : public ::testing::TestWithParam<std::string> {
 protected:
  const Method& method() const { return find_method(GetParam()); }
  Params defaults() const { return {GetParam(), method().info.params, {}}; }

  Compressed run(const KvHead& head, const std::vector<Index>& tokens, std::optional<Index> budget,
                 std::uint64_t seed = 0) const {
    std::vector<double> mass(head.n());
    for (std::size_t i = 0; i < mass.size(); ++i) {
      mass[i] = 1.0 / static_cast<double>(1 + i % 5);
    }
    const ScoreBook book(head);
    Task task{
        head, tokens, budget, {head.q_start(), head.n()}, mass, Rng(seed, {"p", 1, 0}, GetParam())};
    task.scores = &book;
    const RopeTables rope = testing_replay::rope_tables(head.n() + 512, 8);
    const JobFacts facts = method().info.usual_facts();
    task.rope = facts.rope ? &rope : nullptr;
    std::mt19937_64 generator(5);
    const Matrix o_proj =
        normal_matrix(12, static_cast<Index>(head.q.size()) * head.dv(), 1.0, generator);
    task.o_proj = facts.o_proj ? &o_proj : nullptr;
    const std::vector<ExtraSet> extra = usual_extra(head);
    const std::vector<NamedScores> named_scores = usual_scores(head);
    const auto any = [&](auto names) {
      return std::ranges::any_of(facts.scoring,
                                 [&](const Scoring& s) { return !(s.*names).empty(); });
    };
    task.extra = any(&Scoring::sets) ? extra : std::span<const ExtraSet>();
    task.named_scores = any(&Scoring::stored) ? named_scores : std::span<const NamedScores>();
    Compressed c = method().compress(task, defaults());
    check_compressed(c, task);
    return c;
  }

  bool takes_budget() const { return !method().info.sizes.empty(); }
};

INSTANTIATE_TEST_SUITE_P(
    Registry, EveryMethod, ::testing::ValuesIn(method_names()), [](const auto& p) {
      std::string name = p.param;
      std::replace_if(
          name.begin(), name.end(),
          [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
      return name;
    });

bool same_matrix(const Matrix& a, const Matrix& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         std::equal(a.data(), a.data() + a.rows() * a.cols(), b.data());
}

TEST_P(EveryMethod, NeverHoldsMoreThanItsBudget) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    HeadShape shape;
    shape.n = 120;
    shape.dv = 4;
    shape.dtype = dtype;
    const KvHead head = make_head(shape, 21);
    for (const Index m : {1, 2, 3, 50, 100}) {
      const std::vector<Index> tokens = positions(10, 10 + m);
      const Index full = m * head.pair_bytes();
      for (const double rho : {0.0, 0.01, 0.1, 0.25, 0.5, 0.77, 1.0}) {
        if (!takes_budget()) {
          EXPECT_EQ(middle_bytes_of(run(head, tokens, {}), head), full);
          continue;
        }
        const Index budget = budget_bytes(rho, full);
        try {
          const Compressed c = run(head, tokens, budget, 3);
          EXPECT_LE(middle_bytes_of(c, head), budget) << m << " " << rho;
        } catch (const Infeasible& e) {
          EXPECT_GT(e.needed_bytes(), budget);
        }
      }
    }
  }
}

TEST_P(EveryMethod, OddInputsGiveDefinedResults) {
  HeadShape shape;
  shape.n = 40;
  std::vector<KvHead> heads;
  heads.push_back(make_head(shape, 1));
  heads.push_back(make_head(shape, 2));  // identical keys and values
  for (Index i = 1; i < 40; ++i) {
    std::copy_n(heads[1].k.row(0), 8, heads[1].k.row(i));
    std::copy_n(heads[1].v.row(0), 8, heads[1].v.row(i));
  }
  heads.push_back(make_head(shape, 3));  // zero values
  std::fill_n(heads[2].v.data(), 40 * 8, 0.0F);
  heads.push_back(make_head(shape, 4));  // zero keys
  std::fill_n(heads[3].k.data(), 40 * 8, 0.0F);
  shape.key_norm = 100.0;
  shape.value_norm = 1e-20;
  heads.push_back(make_head(shape, 5));
  for (const KvHead& head : heads) {
    for (const Index m : {1, 30}) {
      for (const Index budget : {Index{0}, Index{100}, m * head.pair_bytes(), Index{1} << 40}) {
        try {
          run(head, positions(5, 5 + m), takes_budget() ? std::optional(budget) : std::nullopt);
        } catch (const Infeasible& e) {
          // Factors of one token weigh more than the token.
          EXPECT_LT(budget, GetParam() == "lowrank" ? e.needed_bytes() : m * head.pair_bytes());
        }
      }
    }
  }
}

TEST_P(EveryMethod, SameSeedSameResultAndSeedsMatterOnlyIfSaid) {
  HeadShape shape;
  shape.n = 700;  // several blocks: a walk of one block is the same for both first signs
  shape.d = 64;   // more than a sketch of 48 columns keeps to rounding
  const KvHead head = make_head(shape, 8);
  const std::vector<Index> tokens = positions(0, 700);
  const auto budget = takes_budget() ? std::optional<Index>(500 * head.pair_bytes()) : std::nullopt;
  const auto same = [](const Compressed& a, const Compressed& b) {
    return a.held.tokens == b.held.tokens && a.held.weights == b.held.weights &&
           a.held.common == b.held.common && same_matrix(a.made.k, b.made.k) &&
           same_matrix(a.made.v, b.made.v);
  };
  const Compressed first = run(head, tokens, budget, 1);
  EXPECT_TRUE(same(first, run(head, tokens, budget, 1)));
  // Few coins decide some walks, so two seeds may agree by chance; eight do not.
  bool differs = false;
  for (std::uint64_t seed = 2; seed < 10; ++seed) {
    differs = differs || !same(first, run(head, tokens, budget, seed));
  }
  EXPECT_EQ(differs, method().info.facts(defaults()).random);
}

TEST_P(EveryMethod, WithoutASizeItRefuses) {
  const KvHead head = make_head({}, 1);
  if (takes_budget()) {
    EXPECT_THROW(run(head, positions(0, 10), {}), InputError);
  }
}

TEST_P(EveryMethod, InfoIsComplete) {
  const MethodInfo& info = method().info;
  EXPECT_FALSE(info.summary.empty());
  EXPECT_FALSE(info.source.empty());
  EXPECT_EQ(info.source.find("papers/"), std::string::npos) << info.source;  // no file of ours
  for (const ParamSpec& p : info.params) {
    EXPECT_FALSE(p.doc.empty()) << p.name;
  }
  for (const std::string& size : info.sizes) {
    EXPECT_TRUE(std::any_of(info.params.begin(), info.params.end(), [&](const ParamSpec& p) {
      return p.name == size && p.fallback == "auto";
    }));
  }
  EXPECT_NO_THROW(defaults());
}

std::vector<Index> held(const char* name, const KvHead& head, const std::vector<Index>& tokens,
                        Index kept, std::span<const double> mass = {}) {
  const Method& m = find_method(name);
  const Task task{head, tokens, kept * head.pair_bytes(), {0, 0}, mass, Rng(0, {"p", 0, 0}, name)};
  return m.compress(task, Params(name, m.info.params, {})).held.tokens;
}

TEST(SimpleMethods, SelectionsByHand) {
  const KvHead head = make_head({}, 1);
  const std::vector<Index> tokens = positions(10, 20);
  EXPECT_EQ(held("local", head, tokens, 3), (std::vector<Index>{17, 18, 19}));
  EXPECT_EQ(held("streamingllm", head, tokens, 6), (std::vector<Index>{10, 11, 12, 13, 18, 19}));
  EXPECT_EQ(held("streamingllm", head, tokens, 2), (std::vector<Index>{10, 11}));
  const std::vector<Index> mixed = held("random-local", head, tokens, 5);
  EXPECT_EQ(std::vector<Index>(mixed.end() - 3, mixed.end()), (std::vector<Index>{17, 18, 19}));
  EXPECT_LT(mixed[1], 17);
}

TEST(SimpleMethods, OracleEqualsReferenceWithTies) {
  HeadShape shape;
  shape.n = 60;
  const KvHead head = make_head(shape, 1);
  std::mt19937_64 generator(2);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> mass(60);
    for (double& x : mass) {
      x = static_cast<double>(generator() % 5);  // many ties
    }
    const Index kept = static_cast<Index>(generator() % 41);
    const std::vector<double> middle(mass.begin() + 10, mass.begin() + 50);
    std::vector<Index> expected = reference::top(middle, kept);
    for (Index& i : expected) {
      i += 10;
    }
    ASSERT_EQ(held("oracle", head, positions(10, 50), kept, mass), expected);
  }
}

TEST(Registry, UnknownNameListsAll) {
  testing_replay::expect_refusal([] { find_method("nope"); }, "balancekv");
}

TEST(Params, RefusalsNameWhatIsAllowed) {
  const auto message = [](const std::map<std::string, std::string>& given) {
    return testing_replay::refusal(
        [&] { const Params p("balancekv", find_method("balancekv").info.params, given); });
  };
  EXPECT_NE(message({{"stpe", "self"}}).find("expected T, bias, block, center"), std::string::npos);
  EXPECT_NE(message({{"step", "big"}}).find("self|fixed"), std::string::npos);
  EXPECT_NE(message({{"T", "-1"}}).find("[0, 62]"), std::string::npos);
  EXPECT_NE(message({{"T", "1.5"}}).find("integer"), std::string::npos);
  EXPECT_NE(message({{"gamma", "nan"}}).find("gamma"), std::string::npos);
  EXPECT_NE(message({{"temp", "auto"}}).find("temp"), std::string::npos);
  EXPECT_NE(message({{"rescale", "yes"}}).find("true|false"), std::string::npos);
  EXPECT_NO_THROW(
      Params("balancekv", find_method("balancekv").info.params, {{"T", "2"}, {"gamma", "auto"}}));
}

TEST(Params, CanonicalIsSortedCompleteAndShort) {
  const std::vector<ParamSpec> specs = {real_param("b", "0.5", 0, 9, "", "b"),
                                        integer_param("a", "auto", 0, 9, "", "a")};
  EXPECT_EQ(Params("m", specs, {}).canonical(), "a=auto;b=0.5");
  EXPECT_EQ(Params("m", specs, {{"b", "0.50"}, {"a", "3.0"}}).canonical(), "a=3;b=0.5");
}

}  // namespace
}  // namespace kvbench::test_methods
