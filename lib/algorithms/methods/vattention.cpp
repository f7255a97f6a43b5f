// vattention: each query reads a random sample of the tokens, as many as bound the error of its
// denominator, weighted by the inverse of their rate.
// [1] Desai et al., "vAttention: Verified Sparse Attention via Sampling", 2025, arXiv:2510.05688.
// [2] Its code, xAlg-ai/sparse-attention-hub 1a048c9: AdaptiveSamplingMasker.
// Exact are the tokens outside the task (sinks, recent tokens) and the `heavy` share of the task's
// with the query's largest logits. Of the n others a base sample says how many draws b bound the
// error by epsilon but for a probability of delta (adaptive_sample.hpp). It is thrown away, and b
// new draws weigh n / b each. Both are with replacement: for any b the sums are unbiased.
// At a budget epsilon is the smallest, from 1e-6 on, with which a head's queries fit in the mean,
// counting distinct tokens and the keys of the base sample.
// In: K [n, d], the evaluated queries. Time O(group queries n d), memory O(queries n).
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "algorithms/shared/adaptive_sample.hpp"
#include "algorithms/shared/ranked_reads.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"

namespace kvbench::method_vattention {
namespace {

constexpr double kFinest = 1e-6;  // epsilon

class SampledReads : public ReadIndex {
 public:
  SampledReads(const Task& task, const Params& params)
      : task_(task), outside_(static_cast<std::size_t>(task.head.n()), true) {
    for (const Index i : task.tokens) {
      outside_[i] = false;
    }
    rules_.tokens = task_.tokens;
    rules_.heavy = floor_share(params.real("heavy"), task.count());
    rules_.base = rules_.sampled() > 0
                      ? std::max<Index>(2, floor_share(params.real("base"), rules_.sampled()))
                      : 0;
    rules_.z = upper_quantile(params.real("delta"));
    if (!params.is_auto("epsilon")) {
      epsilon_ = params.real("epsilon");
    } else {
      given_budget(task.budget_bytes, "epsilon=");
    }
  }

  Reads search() override {
    const KvHead& head = task_.head;
    std::vector<Index> all(outside_.size());
    std::iota(all.begin(), all.end(), Index{0});
    Reads out;
    out.lists.queries = task_.evaluated.size();
    out.index_read = rules_.base * task_.read_bytes() * head.d() / (head.d() + head.dv());
    std::string epsilons;
    for (Index g = 0; g < head.group(); ++g) {
      std::vector<AdaptiveSample> samples;
      visit_products(scaled_queries(head, g, out.lists.queries), head.k, all, head.precision,
                     [&](Index j, std::span<const double> logits) {
                       samples.emplace_back(rules_, logits.first(task_.evaluated.begin + j + 1),
                                            sink_logit(head, g), outside_,
                                            task_.rng.stream(fmt::format("draws {} {}", g, j)));
                     });
      const double epsilon = epsilon_ ? *epsilon_ : fit(samples, *out.index_read);
      epsilons += fmt::format("{}{:.6g}", g == 0 ? "" : "/", epsilon);
      for (const AdaptiveSample& sample : samples) {
        add(sample, sample.size(epsilon), out);
      }
    }
    out.diag = {{"epsilon", epsilons}};
    return out;
  }

 private:
  double fit(std::span<const AdaptiveSample> samples, Index index_read) const {
    std::vector<std::vector<Index>> first;
    for (const AdaptiveSample& sample : samples) {
      first.push_back(sample.first_draws());
    }
    const auto bytes = [&](double limit) {
      Index all = 0;
      for (std::size_t j = 0; j < first.size(); ++j) {
        const auto drawn = std::ranges::lower_bound(first[j], samples[j].size(1.0 / limit));
        all += index_read + (rules_.heavy + (drawn - first[j].begin())) * task_.read_bytes();
      }
      return all;
    };
    return 1.0 / largest_limit(task_, static_cast<Index>(first.size()), 1.0 / kFinest, bytes,
                               "the base sample and as many draws need");
  }

  void add(const AdaptiveSample& sample, Index count, Reads& out) const {
    const std::vector<std::uint32_t> times = sample.times(count);
    const double weight = static_cast<double>(rules_.sampled()) / static_cast<double>(count);
    std::vector<std::uint32_t>& tokens = out.lists.tokens.emplace_back();
    std::vector<float>& weights = out.lists.weights.emplace_back();
    for (const Index i : task_.tokens) {
      if (sample.is_exact(i) || times[i] > 0) {
        tokens.push_back(static_cast<std::uint32_t>(i));
        weights.push_back(sample.is_exact(i) ? 1.0F : static_cast<float>(times[i] * weight));
      }
    }
    tokens.shrink_to_fit();
    weights.shrink_to_fit();
    out.asked.push_back(static_cast<Index>(tokens.size()));
  }

  Task task_;
  std::vector<bool> outside_;  // [tokens of the head]
  SampleRules rules_;
  std::optional<double> epsilon_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "vattention";
  info.family = Family::retrieval;
  info.matrix_bytes = [](const Params&, const LayerFacts& l, Index) {
    return 12 * l.n * l.evaluated;
  };
  info.summary = "each query samples tokens, as many as bound the error of its denominator";
  info.source = "Desai et al., 2025, arXiv:2510.05688; xAlg-ai/sparse-attention-hub 1a048c9";
  info.departures =
      "heaviest tokens by exact logits (the paper: by an index) are not sampled too; all draws of "
      "the base sample count in D, and deviations have no floor (the code: distinct ones, 1e-8); "
      "every layer retrieves; no unions: the weights are of one query's draws";
  info.params = {
      real_param("epsilon", "auto", kFinest, 1, "",
                 "relative error of a denominator, in place of a budget; smaller reads more"),
      real_param("delta", "0.1", 1e-9, 0.5, "",
                 "probability that the error is larger, on one side; smaller reads more"),
      real_param("base", "0.01", 0, 1, "",
                 "share of the tokens drawn to estimate the deviation, at least two"),
      real_param("heavy", "0", 0, 1, "", "share of the middle, its largest logits, read exactly")};
  info.sizes = {"epsilon"};
  info.grid = {"heavy=0,0.01,0.02,0.05;base=0.01,0.05"};
  info.authors = "heavy=0.02;base=0.01;delta=0.1";
  info.facts = [](const Params&) { return JobFacts{.random = true}; };
  return {.info = info, .open_reads = open_reads_as<SampledReads>};
}

}  // namespace kvbench::method_vattention
