// balancekv-stream: one MergeAndReduce per bucket of value norms for the numerator, and one over
// the keys alone for the denominator, both halved by SoftmaxBalance.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithms 1 and 3;
//     step=theory;center=none is [1].
//
// A token with 2^i <= |v| < 2^{i+1} enters bucket i, one with |v| = 0 none. Every key enters the
// denominator with v = 1. Level l has weight 2^l. A bucket is erased when its upper end is at most
// epsilon/(2n) exp(-s r^2) v_max, compared as logarithms. v_max and (by default) r are the largest
// norms so far, and n is the stream's length, both with sinks and recent window.
//
// Buckets are not known ahead, so under a byte budget every instance starts with the largest power
// of two <= t_max as t. While a newcomer does not fit, the instance with the most bytes (ties: the
// smaller norms, the denominator last) halves its t (MergeAndReduce::lower), which adds no bytes
// and keeps the sum of weights. At t = 2 everywhere the stream is infeasible.
//
// Aux bytes: bucket, t (4 each) and arrivals (8) per instance, which determine level sizes and
// weights; the two largest norms (16). Time per arrival O(t (d + dv)) amortised, scratch O(t^2)
// during a walk.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "algorithms/contract.hpp"
#include "algorithms/shared/halving.hpp"
#include "algorithms/shared/merge_and_reduce.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/error.hpp"

namespace kvbench::method_balancekv_stream {
namespace {

constexpr Index kInstanceBytes = 16;                           // bucket 4, t 4, arrivals 8
constexpr Index kStateBytes = 16;                              // v_max and r in float64
constexpr int kDenominator = std::numeric_limits<int>::max();  // its bucket: after all others

// i with 2^i <= |v| < 2^{i+1}, from the exponent of |v|^2 > 0.
int bucket_of(double square) {
  int e = 0;
  std::frexp(square, &e);  // square in [2^(e-1), 2^e)
  return e - 1 >= 0 ? (e - 1) / 2 : -((2 - e) / 2);
}

struct Options {
  WalkOptions walk;
  Fill fill = Fill::random;
  Index t = 2;
  Index levels = MergeAndReduce::kUnlimited;
  std::optional<Index> budget;
  double epsilon = 0.1;
  std::optional<double> r;
};

// ceil(log2(n/t)), at least 0.
Index levels_for(Index n, Index t) {
  Index levels = 0;
  while (t < n) {
    t *= 2;
    ++levels;
  }
  return levels;
}

// n/2^T rounded up to an even number.
Index batch_size(Index n, Index levels) {
  const Index batches = Index{1} << levels;
  const Index t = std::max<Index>(2, (n + batches - 1) / batches);
  return t + t % 2;
}

Options read_options(const StreamTask& task, const Params& p) {
  Options o;
  o.walk = walk_options(task.head, p);
  o.fill = fill_of(p);
  o.epsilon = p.real("epsilon");
  if (!p.is_auto("r")) {
    o.r = p.real("r");
  }
  const Index n = task.head.n();
  if (!p.is_auto("t") || !p.is_auto("T")) {
    o.t = p.is_auto("t") ? batch_size(n, p.integer("T")) : p.integer("t");
    o.levels = p.is_auto("T") ? levels_for(n, o.t) : p.integer("T");
  } else {
    o.budget = given_budget(task.budget_bytes, "t= or T=");
    while (2 * o.t <= p.integer("t_max")) {
      o.t *= 2;
    }
  }
  return o;
}

struct Instance {
  MergeAndReduce tokens;
  std::string name;  ///< part of the names of its random streams
  bool ones;         ///< v = 1: the denominator's
  /// Sum over its walks of 2^level 30 ln(t dv / failure): the theorem's bound on its error without
  /// the factor sqrt(dv) exp(s r^2) max |v|. For `diag` only.
  double walked = 0.0;
};

class BalanceKvStream final : public StreamCache {
 public:
  BalanceKvStream(const StreamTask& task, const Params& params)
      : head_(task.head),
        backend_(task.backend),
        rng_(task.rng),
        options_(read_options(task, params)) {
    open(kDenominator);
    if (options_.budget && *options_.budget < kStateBytes + kInstanceBytes) {
      infeasible(0, kStateBytes + kInstanceBytes);
    }
    note_peak(bytes());
  }

  void append(Index j, Index leaving) override {
    largest_value_ = std::max(largest_value_, squared_norm(head_.v.view().row_span(j)));
    largest_norm_ = std::max(largest_norm_, squared_norm(head_.k.view().row_span(j)));
    for (const Matrix& q : head_.q) {
      largest_norm_ = std::max(largest_norm_, squared_norm(q.view().row_span(j - head_.q_start())));
    }
    erase_small_buckets();
    if (leaving < 0) {
      return;
    }
    const std::optional<int> bucket = bucket_for(leaving);
    reserve(j, bucket);
    if (bucket) {
      add(*bucket, leaving);
    }
    add(kDenominator, leaving);
  }

  Compressed view() const override {
    Compressed out;
    collect(false, out.held);
    out.denominator.emplace();
    collect(true, out.denominator->held);
    out.aux_bytes = kStateBytes + kInstanceBytes * static_cast<Index>(instances_.size());
    out.diag = figures();
    return out;
  }

 private:
  Index key_bytes() const { return head_.d() * bytes_per_element(head_.dtype); }
  Index token_bytes(const Instance& i) const { return i.ones ? key_bytes() : head_.pair_bytes(); }
  Index held_bytes(const Instance& i) const { return i.tokens.size() * token_bytes(i); }

  Index bytes() const {
    Index sum = kStateBytes;
    for (const auto& [bucket, instance] : instances_) {
      sum += kInstanceBytes + held_bytes(instance);
    }
    return sum;
  }

  void note_peak(Index bytes) { peak_ = std::max(peak_, bytes); }

  [[noreturn]] void infeasible(Index j, Index needed) const {
    refuse_budget(needed, *options_.budget, fmt::format("position {} needs", j),
                  " with batches of 2 tokens");
  }

  // r^2 of the theorem: a bound on squared key and query norms.
  double squared_radius() const { return options_.r ? *options_.r * *options_.r : largest_norm_; }

  // Whether all of the bucket, |v| < 2^{i+1}, is at most epsilon/(2n) exp(-s r^2) v_max.
  bool below_bound(int bucket) const {
    const double log_bound = std::log(options_.epsilon) -
                             std::log(2.0 * static_cast<double>(head_.n())) -
                             head_.scale * squared_radius() + 0.5 * std::log(largest_value_);
    return (bucket + 1) * std::log(2.0) <= log_bound;
  }

  void erase_small_buckets() {
    while (instances_.size() > 1 && below_bound(instances_.begin()->first)) {
      ++erasures_;
      erased_weight_ += instances_.begin()->second.tokens.weight();
      instances_.erase(instances_.begin());
    }
  }

  // None for a zero value and for a bucket that would be erased at once.
  std::optional<int> bucket_for(Index token) {
    const double square = squared_norm(head_.v.view().row_span(token));
    if (square == 0.0) {
      return {};
    }
    const int bucket = bucket_of(square);
    if (below_bound(bucket)) {
      ++erasures_;
      erased_weight_ += 1.0;
      return {};
    }
    return bucket;
  }

  Instance& open(int bucket) {
    const bool ones = bucket == kDenominator;
    return instances_
        .try_emplace(bucket,
                     Instance{MergeAndReduce(options_.t, options_.levels),
                              ones ? "denominator" : fmt::format("numerator{}", bucket), ones})
        .first->second;
  }

  void add(int bucket, Index token) {
    Instance& instance = open(bucket);
    instance.tokens.append(token, halver(instance));
  }

  // Lowers batch sizes until the newcomer fits. Throws Infeasible if none can be lowered.
  void reserve(Index j, std::optional<int> bucket) {
    const Index newcomer =
        key_bytes() +
        (bucket ? head_.pair_bytes() + (instances_.contains(*bucket) ? 0 : kInstanceBytes) : 0);
    while (options_.budget && bytes() + newcomer > *options_.budget) {
      Instance* largest = nullptr;
      for (auto& [key, i] : instances_) {
        if (i.tokens.t() > 2 && (largest == nullptr || held_bytes(i) > held_bytes(*largest))) {
          largest = &i;
        }
      }
      if (largest == nullptr) {
        infeasible(j, bytes() + newcomer);
      }
      largest->tokens.lower(halver(*largest));
    }
    note_peak(bytes() + newcomer);
  }

  HalveBlock halver(Instance& instance) {
    return [this, &instance](std::span<const Index> block, const BlockId& id) {
      const std::string name =
          fmt::format("-{}-{}-{}-{}", instance.name, id.t, id.level, id.number);
      std::vector<double> uniforms(block.size());
      std::vector<std::int8_t> signs(block.size());
      rng_.stream("walk" + name).uniforms(0, uniforms);
      // Weights of a block are equal, so they do not change the walk.
      const std::vector<double> weights(block.size(), 1.0);
      const auto size = static_cast<Index>(block.size());
      counts_ += backend_.balance_blocks(
          head_, {block, weights, uniforms, size, instance.ones, options_.walk}, signs, {});
      const double columns = instance.ones ? 1.0 : static_cast<double>(head_.dv());
      instance.walked +=
          std::ldexp(30.0, static_cast<int>(id.level)) *
          std::log(static_cast<double>(block.size()) * columns / options_.walk.failure);
      RngStream fill = rng_.stream("fill" + name);
      std::vector<Index> kept;
      for (const Survivor& s : halve(signs, Select::strict, options_.fill, size, fill)) {
        kept.push_back(block[s.place]);
      }
      return kept;
    };
  }

  void collect(bool ones, HeldTokens& out) const {
    std::vector<std::pair<Index, float>> all;
    for (const auto& [bucket, instance] : instances_) {
      if (instance.ones != ones) {
        continue;
      }
      float weight = 1.0F;
      for (const std::vector<Index>& level : instance.tokens.levels()) {
        for (const Index token : level) {
          all.emplace_back(token, weight);
        }
        weight *= 2.0F;
      }
    }
    std::sort(all.begin(), all.end());
    for (const auto& [token, weight] : all) {
      out.tokens.push_back(token);
      out.weights.push_back(weight);
    }
  }

  // log10 of the smallest epsilon for which the proof of Theorem 3.3, with its constants, holds for
  // every instance after the walks so far; -inf while all is exact. Measured: column eps_fro.
  double log10_epsilon() const {
    double worst = -std::numeric_limits<double>::infinity();
    for (const auto& [bucket, i] : instances_) {
      if (i.walked > 0.0) {
        const double columns = i.ones ? 1.0 : static_cast<double>(head_.dv());
        worst = std::max(worst, std::log(i.walked / static_cast<double>(i.tokens.arrivals())) +
                                    0.5 * std::log(columns) + 2.0 * head_.scale * squared_radius());
      }
    }
    return worst / std::log(10.0);
  }

  Figures figures() const {
    double numerator = 0.0;
    Index smallest = instances_.size() > 1 ? std::numeric_limits<Index>::max() : options_.t;
    for (const auto& [bucket, instance] : instances_) {
      if (!instance.ones) {
        numerator += instance.tokens.weight();
        smallest = std::min(smallest, instance.tokens.t());
      }
    }
    const MergeAndReduce& denominator = instances_.at(kDenominator).tokens;
    Figures out = walk_figures(counts_);
    out.insert(out.end(), {{"buckets", fmt::format("{}", instances_.size() - 1)},
                           {"erasures", fmt::format("{}", erasures_)},
                           {"erased_weight", fmt::format("{:.9g}", erased_weight_)},
                           {"weight_sum", fmt::format("{:.9g}", denominator.weight())},
                           {"numerator_weight_sum", fmt::format("{:.9g}", numerator)},
                           {"t", fmt::format("{}", smallest)},
                           {"t_denominator", fmt::format("{}", denominator.t())},
                           {"peak", fmt::format("{}", peak_)},
                           {"log10_epsilon_theorem", fmt::format("{:.6g}", log10_epsilon())}});
    return out;
  }

  const KvHead& head_;
  const Backend& backend_;
  Rng rng_;
  Options options_;
  std::map<int, Instance> instances_;  // by bucket
  double largest_value_ = 0.0;         // max |v|^2
  double largest_norm_ = 0.0;          // max of |k|^2 and |q|^2
  Index erasures_ = 0;
  double erased_weight_ = 0.0;
  Index peak_ = 0;  // most bytes ever held, with the newcomer
  WalkCounts counts_;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "balancekv-stream";
  info.family = Family::sampling;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    const Index most = std::min(2 * kept, p.integer("t_max"));
    const Index t = !p.is_auto("t")   ? p.integer("t")
                    : !p.is_auto("T") ? batch_size(l.n, p.integer("T"))
                                      : most;
    return 2 * l.element_bytes * t * t;
  };
  info.summary = "merge-and-reduce by the self-balancing walk, one tree per bucket of value norms";
  info.source =
      "Han et al., BalanceKV: KV Cache Compression through Discrepancy Theory, Algorithms 1 and 3";
  info.departures =
      "sides of the bucket inequality swapped back; T rounded up; under a byte budget an instance "
      "halves its batch size whenever the next token does not fit; walk defaults of balancekv";
  const std::vector<ParamSpec> own = {
      integer_param("t", "auto", 2, 32768, "tokens",
                    "batch size, even; larger is closer to exact and holds more; auto: n/2^T "
                    "rounded up to even, or by the budget"),
      integer_param("T", "auto", 0, 40, "levels",
                    "most halvings of a token; auto: ceil(log2(n/t)), or by the budget"),
      integer_param("t_max", "4096", 2, 32768, "tokens",
                    "initial batch size under a budget, rounded down to a power of two; a walk "
                    "takes 16 t^2 bytes of scratch"),
      real_param("epsilon", "0.1", 1e-300, 1, "",
                 "erases buckets below epsilon/(2n) exp(-s r^2) v_max; larger erases more"),
      real_param("r", "auto", 0, 1e18, "norm",
                 "bound on key and query norms in the erasure; auto: the largest so far"),
  };
  info.params =
      joined({own,
              walk_params("scale of P(+1) = 1/2 - y * step, as for balancekv", "t"),
              {choice_param("center", {"block", "none"},
                            "subtract the block's mean key before the kernel"),
               real_param("temp", "1", 0, 1e6, "", "multiplies the scale s inside the kernel"),
               choice_param("fill", {"random", "order"},
                            "how the minority is filled up from the majority to exactly half")}});
  info.grid = {"step=greedy,self;center=block,none"};
  info.sizes = {"t", "T"};
  info.facts = [](const Params& p) {
    if (!p.is_auto("t") && p.integer("t") % 2 != 0) {
      throw InputError(fmt::format(
          "balancekv-stream: parameter t: got {}, expected an even integer", p.integer("t")));
    }
    return JobFacts{.random = true};
  };
  return {info, nullptr, open_as<BalanceKvStream>};
}

}  // namespace kvbench::method_balancekv_stream
