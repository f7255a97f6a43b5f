// Every registered method, unasked: what the contract promises for any size and odd input.

#include <numeric>
#include <set>

#include "algorithms/shared/size.hpp"
#include "method_checks.hpp"
#include "refusal.hpp"

namespace kvbench::test_methods {
namespace {

// All methods of the prefill protocol with their defaults, and settings with code or bytes of their
// own.
std::vector<std::string> specs() {
  std::vector<std::string> out;
  for (const Method& m : methods()) {
    if (m.compress != nullptr) {  // q8_0 asks for 32 channels
      out.push_back(m.info.name == "quant-format" ? "quant-format:k_type=int8;v_type=fp8"
                                                  : m.info.name);
    }
  }
  for (const char* setting : {"attention-matching:keys=omp",
                              "attention-matching:ridge=0",
                              "attention-matching:ridge=1e-9;w_min=0;w_max=1e6",
                              "attention-matching:w_min=0;w_max=0",
                              "attention-matching:weights=one;keys=max",
                              "attention-matching:values=kept",
                              "attention-matching:ref=repeat",
                              "balancekv:step=theory;select=strict;block=16",
                              "balancekv:step=self;denominator=uniform;block=16",
                              "balancekv:step=repo;select=repo;block=16",
                              "balancekv:select=block;denominator=separate;block=16",
                              "bumblebee:optimizer=greedy;matrix_mib=0;sim=abs",
                              "bumblebee:optimizer=stochastic;recent_share=0;phi=power",
                              "cam:prefill=once",
                              "capkv:rope=tables",
                              "clustergen:t=2;share=0.75",
                              "clustergen-kcenter:weights=one;recent_share=0",
                              "clustergen-kcenter:weights=cluster;start=first",
                              "compactor:sketch=0;chunk=13",
                              "defensivekv:scope=layers",
                              "dropkv:scope=layer",
                              "expected-attention:rope=tables",
                              "h2o:ref=repeat",
                              "kvreviver:prefill=stream",
                              "kvreviver:prefill=stream;estimate=mean;slack=3",
                              "kvreviver:vague=none",
                              "kvreviver:vague=mean;candidate_ratio=0",
                              "kvreviver:estimate=mean;recent_ratio=0",
                              "kvreviver:recent_ratio=0.01;rows=1",
                              "kvreviver:candidate_ratio=0.3;vague_ratio=0.01",
                              "kvreviver:recent_ratio=0;candidate_ratio=0;vague_ratio=1",
                              "kvzip:plus=true",
                              "leverage:sketch=0",
                              "lowrank:keys=pre;weight=queries",
                              "quant-kivi:residual=0;keys=pre",
                              "quant-kivi:residual=16",
                              "quant-rotated:rotation=none",
                              "quant-rotated:rotation=none;residual=sign;center=mean",
                              "quant-rotated:rotation=orthogonal;correct=none;keys=pre",
                              "snapkv:ref=repeat",
                              "triattention:aggregate=max",
                              "wildcat:per_bin=0"}) {
    out.emplace_back(setting);
  }
  return out;
}

class EveryMethod : public ::testing::TestWithParam<std::string> {
 protected:
  EveryMethod() : name_(parsed_spec(GetParam()).name), given_(parsed_spec(GetParam()).given) {}

  const MethodInfo& info() const { return find_method(name_).info; }
  JobFacts facts() const {
    return info().facts(Params(name_, params_of(method(), given_), given_));
  }
  const Method& method() const { return find_method(name_); }
  bool takes_budget() const { return !info().sizes.empty() || info().must_fit; }
  bool takes(const char* size) const { return std::ranges::count(info().sizes, size) > 0; }
  Given with(const std::string& name, const std::string& value) const {
    Given out = given_;
    out[name] = value;
    return out;
  }

  JobOf job_of(const KvHead& head, const std::vector<Index>& tokens, Range scoring) const {
    return JobOf(name_, head, tokens, scoring, /*equipped=*/true);
  }
  Compressed run(const JobOf& job, std::optional<Index> budget, std::uint64_t seed = 1) const {
    return job.run(takes_budget() ? budget : std::nullopt, given_, seed);
  }

  std::string name_;
  Given given_;
};

INSTANTIATE_TEST_SUITE_P(Registry, EveryMethod, ::testing::ValuesIn(specs()), spec_name);

// Methods that may hold fewer entries than fit: whole heads or layers, clusters, samples, and
// those that hold all in fewer bytes.
bool may_hold_fewer(const MethodInfo& info) {
  static const std::set<std::string> kFewer = {"duoattention", "simlayerkv", "kmeans",
                                               "wildcat",      "clustergen", "kvreviver"};
  return kFewer.contains(info.name) || info.family == Family::quantization ||
         info.name == "lowrank";
}

// Many sizes, element types, and tokens with gaps. What is made lies at the element type, but for
// what a quantizer reads back.
TEST_P(EveryMethod, NeverHoldsMoreThanItsBudgetAndUsesIt) {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32}) {
    const KvHead head = make_rounded_head({.n = 150, .nq = 60, .dv = 4, .dtype = dtype}, 21);
    for (const Index m : {0, 1, 2, 3, 20, 100}) {
      for (const std::vector<Index>& tokens : {positions(10, 10 + m), gappy(10, 10 + m)}) {
        const JobOf job = job_of(head, tokens, {90, 140});
        const auto count = static_cast<Index>(tokens.size());
        const Index full = count * head.pair_bytes();
        if (!takes_budget()) {
          EXPECT_EQ(middle_bytes_of(run(job, {}), head), full);
          continue;
        }
        const WeightBytes weights = facts().weights;
        const Index each = head.pair_bytes() + weights.each;
        const Index step = 1 + std::max(each / 3, full / (dtype == DType::float16 ? 60 : 17));
        for (Index budget = 0; budget <= full + 3 * each; budget += step) {
          Compressed c;
          try {
            c = run(job, budget);
          } catch (const Infeasible& e) {
            ASSERT_GT(e.needed_bytes(), budget);
            ASSERT_NO_THROW(run(job, e.needed_bytes()));
            ASSERT_EQ(needed_bytes([&] { run(job, e.needed_bytes() - 1); }), e.needed_bytes());
            continue;
          }
          ASSERT_LE(middle_bytes_of(c, head), budget) << m << " " << budget;
          const Index held = static_cast<Index>(c.held.tokens.size()) + c.made.k.rows();
          const Index most = std::min(count, (budget - weights.once) / each);
          if (name_ == "duoattention" || name_ == "simlayerkv") {
            ASSERT_EQ(held, budget >= full ? count : 0);
          } else if (may_hold_fewer(info()) || facts().own_denominator) {
            ASSERT_TRUE(held > 0 || most == 0 || budget < 2 * each) << m << " " << budget;
          } else {
            ASSERT_EQ(held, most) << m << " " << budget;
          }
          for (const Matrix* made : {&c.made.k, &c.made.v}) {
            for (Index i = 0; info().holds != Holds::placed && i < made->rows() * made->cols();
                 ++i) {
              ASSERT_EQ(made->data()[i], round_to(dtype, made->data()[i]));
            }
          }
        }
        if (info().holds == Holds::tokens) {
          EXPECT_EQ(run(job, full).held.tokens, tokens);
        }
      }
    }
  }
}

// check_compressed() refuses what is not finite.
TEST_P(EveryMethod, OddInputsGiveDefinedResults) {
  for (const KvHead& head : odd_heads()) {
    for (const Index m : {0, 1, 30}) {
      for (const Range scoring : {Range{0, 40}, Range{35, 36}, Range{40, 40}}) {
        const JobOf job = job_of(head, positions(5, 5 + m), scoring);
        const Index full = m * head.pair_bytes();
        for (const Index budget : {Index{0}, Index{1}, Index{500}, full, Index{1} << 40}) {
          try {
            const Compressed c = run(job, budget);
            for (const auto& [key, value] : c.diag) {
              char* end = nullptr;
              const double number = std::strtod(value.c_str(), &end);
              ASSERT_FALSE(*end == 0 && std::isnan(number)) << key;
            }
          } catch (const Infeasible& e) {
            // Factors and scales of few tokens, or a weight, weigh more than the tokens.
            const bool more = m == 0 || info().holds == Holds::placed;
            EXPECT_LT(budget, more ? e.needed_bytes() : full);
          }
        }
        if (takes("T")) {
          ASSERT_NO_THROW(job.run({}, with("T", "1")));
        }
        if (takes("tokens") && info().holds == Holds::tokens) {
          ASSERT_EQ(job.run({}, with("tokens", "1000")).held.tokens, job.tokens());
        }
        if (!info().sizes.empty() && m > 0) {
          ASSERT_THROW(run(job, {}), InputError);
        }
      }
    }
  }
}

TEST_P(EveryMethod, SameSeedSameResultAndSeedsMatterOnlyIfSaid) {
  // Several blocks: a walk of one block is the same for both first signs. d: more than a sketch of
  // 48 columns keeps to rounding.
  const KvHead head = make_head({.n = 700, .d = 64}, 8);
  const JobOf job = job_of(head, positions(0, 700), {head.q_start(), head.n()});
  const Index budget = 500 * head.pair_bytes();
  const Compressed first = run(job, budget, 1);
  EXPECT_TRUE(same(first, run(job, budget, 1)));
  // Few coins decide some walks, so two seeds may agree by chance; eight do not.
  bool differs = false;
  for (std::uint64_t seed = 2; seed < (facts().random ? 10 : 3); ++seed) {
    differs = differs || !same(first, run(job, budget, seed));
  }
  EXPECT_EQ(differs, facts().random);
}

// Without any of what its facts say that it reads a method refuses the layer.
TEST_P(EveryMethod, RefusesALayerWithoutWhatItReads) {
  const JobOf job = job_of(make_head({.n = 40, .nq = 8, .dv = 4}, 1), positions(5, 30), {});
  ExtraSetInfo set = info_of(job.extra.front());
  const std::vector<ExtraSetInfo> sets{set};
  const std::vector<ScoresInfo> scores{{"auto", 32}};
  LayerFacts whole{.n = 40,
                   .d = 8,
                   .dv = 4,
                   .scoring = {0, 40},
                   .rope_positions = 40 + 512,
                   .hidden = 13,
                   .extra = sets,
                   .scores = scores};
  const auto resolve = [&](const LayerFacts& layer) {
    if (method().info.resolve != nullptr) {
      method().info.resolve(job.params(given_), layer);
    }
  };
  EXPECT_NO_THROW(resolve(whole));
  JobFacts read = facts();
  if ((name_ == "expected-attention" || name_ == "capkv") && given_.empty()) {
    read.rope = false;  // rope=auto takes them where they are
  }
  const auto refused = [&](bool reads, const char* words, const auto& change) {
    LayerFacts layer = whole;
    change(layer);
    if (reads) {
      testing_replay::expect_refusal([&] { resolve(layer); }, words);
    }
  };
  refused(read.rope, "rotary tables", [](LayerFacts& l) { l.rope_positions = 0; });
  // Some read the positions behind the prompt too.
  const Index positions_read =
      std::ranges::count(info().params, "n_future", &ParamSpec::name) > 0 ? 40 + 512 : 40;
  refused(read.rope, "positions, expected at least",
          [&](LayerFacts& l) { l.rope_positions = positions_read - 1; });
  refused(read.o_proj, "output projection (o_proj)", [](LayerFacts& l) { l.hidden = 0; });
  for (const Scoring& s : read.scoring) {
    refused(!s.sets.empty(), "no extra queries 'repeat', has: none",
            [](LayerFacts& l) { l.extra = {}; });
    refused(!s.sets.empty(), "expected at most n - queries",
            [](LayerFacts& l) { l.evaluated = 20; });
    refused(!s.stored.empty(), "scores", [](LayerFacts& l) { l.scores = {}; });
    refused(!s.sets.empty() && method().open_stream != nullptr, "under prefill",
            [](LayerFacts& l) { l.stream = true; });
  }
}

// Other queries change what is held at some size if and only if the facts say that they are read.
TEST_P(EveryMethod, ReadsQueriesIfItSaysSo) {
  const HeadShape shape{.n = 300, .nq = 300, .dv = 4};
  const KvHead head = make_head(shape, 3);
  KvHead other = head;
  other.q = make_head(shape, 4).q;
  const JobOf one = job_of(head, positions(5, 285), {20, 290});
  const JobOf two = job_of(other, positions(5, 285), {20, 290});
  bool differs = false;
  for (const Index tokens : {40, 150, 260}) {
    try {
      const Compressed a = run(one, tokens * head.pair_bytes());
      const Compressed b = run(two, tokens * head.pair_bytes());
      differs = differs || a.held.tokens != b.held.tokens || !same_bits(a.made.k, b.made.k) ||
                !same_bits(a.made.v, b.made.v);
    } catch (const Infeasible&) {
    }
  }
  // A head alone, or a layer, is kept whole or not at all; Vague holds sums in which no order is.
  if (name_ != "duoattention" && name_ != "simlayerkv" && !given_.contains("candidate_ratio")) {
    EXPECT_EQ(differs, std::ranges::any_of(facts().scoring, [](const Scoring& s) {
                return s.sets.empty() && s.stored.empty();
              }));
  }
}

TEST_P(EveryMethod, AnEvenKernelIsRefused) {
  const auto check = [&](const char* kernel) {
    const Given given = with("kernel", kernel);
    info().facts(Params(name_, params_of(method(), given), given));
  };
  if (std::ranges::count(info().params, "kernel", &ParamSpec::name) > 0) {
    EXPECT_NO_THROW(check("7"));
    EXPECT_EQ(testing_replay::refusal([&] { check("8"); }),
              name_ + ": parameter kernel: got 8, expected an odd integer");
  }
}

TEST_P(EveryMethod, InfoIsComplete) {
  EXPECT_FALSE(info().summary.empty());
  EXPECT_FALSE(info().source.empty());
  EXPECT_EQ(info().source.find("papers/"), std::string::npos) << info().source;  // no file of ours
  for (const ParamSpec& p : info().params) {
    EXPECT_FALSE(p.doc.empty()) << p.name;
  }
  for (const std::string& size : info().sizes) {
    EXPECT_TRUE(std::any_of(info().params.begin(), info().params.end(), [&](const ParamSpec& p) {
      return p.name == size && p.fallback == "auto";
    }));
  }
  EXPECT_NO_THROW(Params(name_, info().params, {}));
}

TEST(SharedBudgets, ScopeIsWhatTheParameterSaysAndLayersOfTwoShapesShareNone) {
  std::vector<Survey> surveys(2);
  surveys[1].layer = 1;
  surveys[0].pair_bytes = 16;
  surveys[1].pair_bytes = 32;
  for (const auto& [spec, scope] : {std::pair{"pyramidkv", Scope::layers},
                                    {"kvzip:budget=model", Scope::layers},
                                    {"kvzip:budget=layer", Scope::layer},
                                    {"kvzip:budget=head", Scope::head},
                                    {"defensivekv:scope=layers", Scope::layers},
                                    {"defensivekv", Scope::layer},
                                    {"dropkv:scope=layer", Scope::layer},
                                    {"dropkv", Scope::head}}) {
    const auto [name, given] = parsed_spec(spec);
    EXPECT_EQ(facts_of(name, given).scope, scope) << spec;
    if (scope == Scope::layers) {
      EXPECT_THROW(shared_tokens(name, surveys, given), InputError) << spec;
    }
  }
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
  const KvHead head = make_head({.n = 60}, 1);
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
  const auto refuses = [](const std::map<std::string, std::string>& given,
                          const std::string& words) {
    testing_replay::expect_refusal(
        [&] { const Params p("balancekv", find_method("balancekv").info.params, given); }, words);
  };
  refuses({{"stpe", "self"}}, "expected T, bias, block, center");
  refuses({{"step", "big"}}, "self|fixed");
  refuses({{"T", "-1"}}, "[0, 62]");
  refuses({{"T", "1.5"}}, "integer");
  refuses({{"gamma", "nan"}}, "gamma");
  refuses({{"temp", "auto"}}, "temp");
  refuses({{"rescale", "yes"}}, "true|false");
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
