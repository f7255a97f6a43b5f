// balancekv: repeated halving of the middle by SoftmaxBalance. The survivors' weights represent the
// dropped tokens.
// [1] Han et al., "BalanceKV: KV Cache Compression through Discrepancy Theory", Algorithm 2 and
//     section 4.1.
// Departs from [1] by default: block-centred keys (exact for attention up to a common factor),
// step, selection rule and shared denominator, chosen by configs/balancekv_default.toml.
// In: K [m, d], V [m, dv] of the task's tokens. Out: B of them, weights [B].
// Time O(m block (d + dv)), memory O(block^2 + m).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "algorithms/shared/halving.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench::method_balancekv {
namespace {

// The public code adds it to every inner product of values, beside value_bias.
constexpr double kPlainBias = 1e-8;

struct Options {
  WalkOptions walk;
  Select select = Select::weighted;
  Fill fill = Fill::random;
  Index block = 256;
  bool rescale = false;
};

struct WeightedToken {
  Index token;
  double weight;
};

double mean_square_value(const Task& task) {
  double sum = 0.0;
  for (const Index i : task.tokens) {
    for (const float x : task.head.v.view().row_span(i)) {
      sum += static_cast<double>(x) * static_cast<double>(x);
    }
  }
  return task.tokens.empty() ? 0.0 : sum / static_cast<double>(task.tokens.size());
}

Options read_options(const Task& task, const Params& p) {
  Options o;
  o.walk = walk_options(task.head, p);
  o.walk.value_bias = p.is_auto("value_bias") ? (o.walk.step == WalkStep::repo ? 0.025 : 0.0)
                                              : p.real("value_bias");
  o.walk.value_bias += p.real("value_bias_rel") * mean_square_value(task);
  o.walk.plain_bias = p.text("bias") == "plain";
  o.walk.value_bias += o.walk.plain_bias ? kPlainBias : 0.0;
  o.select = p.choice<Select>("select", {{"weighted", Select::weighted},
                                         {"repo", Select::repo},
                                         {"strict", Select::strict},
                                         {"block", Select::block}});
  o.fill = fill_of(p);
  o.block = p.integer("block");
  o.walk.padded = p.text("center") == "padded" ? o.block : 0;
  o.rescale = p.flag("rescale");
  return o;
}

// Moves the `count` oldest of `live` to the front. Both parts keep their order.
std::size_t oldest_first(std::vector<WeightedToken>& live, Index count) {
  std::vector<Index> positions;
  std::ranges::transform(live, std::back_inserter(positions), &WeightedToken::token);
  std::nth_element(positions.begin(), positions.begin() + (count - 1), positions.end());
  const Index last = positions[count - 1];
  std::stable_partition(live.begin(), live.end(),
                        [&](const WeightedToken& l) { return l.token <= last; });
  return static_cast<std::size_t>(count);
}

double total_weight(const std::vector<WeightedToken>& live) {
  return std::accumulate(live.begin(), live.end(), 0.0,
                         [](double sum, const WeightedToken& l) { return sum + l.weight; });
}

class Halver {
 public:
  // `ones`: all values are 1, for the denominator's own run (Algorithm 1).
  Halver(const Task& task, const Options& options, bool ones)
      : task_(task), options_(options), ones_(ones) {
    if (ones) {
      options_.walk.value_bias = 0.0;
    }
  }

  std::vector<WeightedToken> run(Index kept) {
    std::vector<WeightedToken> live;
    for (const Index i : task_.tokens) {
      live.push_back({i, 1.0});
    }
    for (int t = 0; static_cast<Index>(live.size()) > kept; ++t) {
      const auto m = static_cast<Index>(live.size());
      // The last halving covers only the oldest 2(m - B), so that B remain.
      const std::size_t part = m / 2 >= kept ? live.size() : oldest_first(live, 2 * (m - kept));
      const std::vector<WeightedToken> rest(live.begin() + static_cast<std::ptrdiff_t>(part),
                                            live.end());
      live.resize(part);
      halve_once(live, t);
      live.insert(live.end(), rest.begin(), rest.end());
    }
    std::ranges::sort(live, {}, &WeightedToken::token);
    return live;
  }

  const WalkCounts& counts() const { return counts_; }

 private:
  void halve_once(std::vector<WeightedToken>& live, int t) {
    std::vector<std::int8_t> signs(live.size());
    std::vector<double> uniforms(live.size());
    const std::string suffix = fmt::format("{}{}", ones_ ? "-denominator-" : "-", t);
    task_.rng.stream("walk" + suffix).uniforms(0, uniforms);
    std::vector<Index> tokens;
    std::vector<double> weights;
    for (const WeightedToken& l : live) {
      tokens.push_back(l.token);
      weights.push_back(l.weight);
    }
    counts_ += task_.backend.balance_blocks(
        task_.head, {tokens, weights, uniforms, options_.block, ones_, options_.walk}, signs, {});
    RngStream fill = task_.rng.stream("fill" + suffix);
    const double before = total_weight(live);
    const std::vector<Survivor> survivors =
        halve(signs, options_.select, options_.fill, options_.block, fill);
    std::vector<WeightedToken> next;
    double doubled = 0.0;
    for (const Survivor& s : survivors) {
      const WeightedToken& old = live[s.place];
      next.push_back({old.token, old.weight * s.factor});
      doubled += s.factor > 1.0 ? next.back().weight : 0.0;
    }
    if (options_.rescale && doubled > 0.0) {
      const double factor = (before - (total_weight(next) - doubled)) / doubled;
      for (std::size_t i = 0; i < next.size(); ++i) {
        next[i].weight *= survivors[i].factor > 1.0 ? factor : 1.0;
      }
    }
    live = std::move(next);
  }

  const Task& task_;
  Options options_;
  bool ones_;
  WalkCounts counts_;
};

// Stores one common weight if all are equal, otherwise one float32 per token. Returns their bytes.
Index store(const std::vector<WeightedToken>& live, HeldTokens& out) {
  bool equal = true;
  for (const WeightedToken& l : live) {
    out.tokens.push_back(l.token);
    out.weights.push_back(static_cast<float>(l.weight));
    equal = equal && out.weights.back() == out.weights.front();
  }
  if (!equal) {
    return 4 * static_cast<Index>(live.size());
  }
  out.common = live.empty() ? 1.0F : out.weights.front();
  out.weights.clear();
  return out.common == 1.0F ? 0 : 4;
}

Compressed compress(const Task& task, const Params& params) {
  const Options options = read_options(task, params);
  const std::string& denominator = params.text("denominator");
  const bool separate = denominator == "separate";
  const Index weight_bytes = 4;
  const Index key_bytes = task.head.d() * bytes_per_element(task.head.dtype);
  const Index bytes_each =
      task.head.pair_bytes() + weight_bytes + (separate ? key_bytes + weight_bytes : 0);
  Index kept = tokens_to_keep(task, params, bytes_each);
  // The uniform weight takes 4 more bytes, which may cost the last token.
  if (denominator == "uniform" && kept > 0 && task.budget_bytes &&
      kept * bytes_each + weight_bytes > *task.budget_bytes) {
    --kept;
  }

  Compressed out;
  Halver halver(task, options, /*ones=*/false);
  const std::vector<WeightedToken> live = halver.run(kept);
  out.aux_bytes = store(live, out.held);
  WalkCounts counts = halver.counts();
  if (separate) {
    Halver keys_only(task, options, /*ones=*/true);
    out.denominator.emplace();
    out.aux_bytes += store(keys_only.run(kept), out.denominator->held);
    counts += keys_only.counts();
  } else if (denominator == "uniform" && kept > 0) {
    out.denominator.emplace();
    out.denominator->same_keys = true;
    out.denominator->held.tokens = out.held.tokens;
    out.denominator->held.common =
        static_cast<float>(static_cast<double>(task.count()) / static_cast<double>(kept));
    out.aux_bytes += weight_bytes;
  }
  out.diag = walk_figures(counts);
  out.diag.emplace_back("weight_sum", fmt::format("{:.9g}", total_weight(live)));
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "balancekv";
  info.family = Family::sampling;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index) {
    const Index block = std::min(l.n, p.integer("block"));
    return 2 * l.element_bytes * block * (block + l.d + l.dv);
  };
  info.summary = "repeated halving by the self-balancing walk, with weighted survivors";
  info.source =
      "Han et al., BalanceKV: KV Cache Compression through Discrepancy Theory, Algorithm 2 and "
      "section 4.1";
  info.departures =
      "step chosen on development prompts; "
      "step=theory;center=none;select=strict;denominator=separate is the paper's text, with R^2 "
      "the "
      "block's largest diagonal entry; balancekv:authors is the public code, ksheth96/BalanceKV "
      "4ccee30, balanced_walk; temp=0.1 besides in its notebook of figure 2";
  const std::vector<ParamSpec> walk = walk_params(
      "scale of P(+1) = 1/2 - y * step: the sign that opposes y, gamma/G_jj, gamma/R^2, 1/(2cR^2), "
      "gamma",
      "block");
  const std::vector<ParamSpec> own = {
      real_param("value_bias", "auto", 0, 1e30, "value^2",
                 "added to <v_i,v_j>, which balances the denominator too; auto: 0.025 for repo, "
                 "otherwise 0"),
      real_param("value_bias_rel", "0", 0, 1e6, "mean |v|^2",
                 "value_bias in units of the mean squared value norm"),
      choice_param("bias", {"weighted", "plain"},
                   "w_i w_j (<v_i,v_j> + value_bias), or w_i w_j <v_i,v_j> + value_bias + 1e-8"),
      choice_param("center", {"block", "none", "padded"},
                   "subtract the block's mean key before the kernel; padded: zero keys fill up the "
                   "last block for its mean"),
      real_param("temp", "1", 0, 1e6, "", "multiplies the scale s inside the kernel"),
      integer_param("block", "256", 2, 4096, "tokens", "block of one walk; even"),
      choice_param("select", {"weighted", "repo", "strict", "block"},
                   "which half survives: docs/methods.md"),
      choice_param("fill", {"random", "order"},
                   "how strict and block fill up the minority from the majority"),
      flag_param("rescale", false, "scale doubled weights to preserve the sum of weights"),
      choice_param("denominator", {"shared", "uniform", "separate"},
                   "the numerator's weights, |M|/B for all, or a second run with v = 1"),
  };
  info.params = joined({size_params(), walk, own});
  info.grid = {"center=block,none;value_bias_rel=0,0.1,0.5", "step=self;value_bias_rel=0,0.5",
               "select=strict", "block=64", "temp=0.5"};
  info.authors = "step=repo;select=repo;center=padded;bias=plain;denominator=uniform";
  info.holds = Holds::weighted_tokens;
  info.facts = [](const Params& p) {
    if (p.integer("block") % 2 != 0) {
      throw InputError(fmt::format("balancekv: parameter block: got {}, expected an even integer",
                                   p.text("block")));
    }
    return JobFacts{
        .random = true, .weights = {4, 0}, .own_denominator = p.text("denominator") != "shared"};
  };
  return {info, compress};
}

}  // namespace kvbench::method_balancekv
