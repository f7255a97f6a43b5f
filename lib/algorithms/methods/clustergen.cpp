// clustergen: one pass over the tokens. Online clusters of keys, each with uniform samples, give
// the denominator; (k,v) pairs sampled by |v|^2 give the numerator.
// [1] Zandieh, Han, Mirrokni, Karbasi, "ClusterGen: Token Generation in Sublinear Time and Memory
//     with Clustering KV Cache", Algorithm 1.
//
// State, all of which counts:
//   samples slots of one (k,v) pair, each token i with probability |v_i|^2 / mu    (Lemma B.2)
//   per cluster its first key and t slots of one key, each uniform over the cluster (Lemma B.3)
//   mu = sum |v|^2 (float64, 8 bytes), the clusters' sizes (4 bytes each)
// A token in several slots is stored as often. A pair has weight mu / (samples |v|^2), a key
// n_cluster / t; `held` shows each position once with the sum of its slots' weights.
//
// delta=auto, samples=auto and the check that delta's clusters fit read the whole stream when it is
// opened. Given delta and samples, without a budget, nothing reads ahead. Updates never do.
// In: K [m, d], V [m, dv] of the task's tokens in order. Time O(m clusters d) and O(samples) per
// change; delta=auto clusters once per bisection step. Memory O(samples + clusters (t + d)).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "algorithms/shared/stream_tokens.hpp"
#include "attention/inner_products.hpp"
#include "attention/online_clusters.hpp"

namespace kvbench::method_clustergen {
namespace {

constexpr Index kCountBytes = 4;
constexpr Index kMuBytes = 8;

struct Sizes {
  bool all = false;  ///< the budget holds every token
  double delta = 0.0;
  Index samples = 0;
  Index t = 0;
};

// First key, t sampled keys, size.
Index cluster_bytes(const KvHead& head, Index t) {
  return (1 + t) * head.d() * bytes_per_element(head.dtype) + kCountBytes;
}

// `share` of the budget for pairs, the rest for clusters.
Sizes sizes_by_budget(const KvHead& head, std::span<const Index> stream,
                      std::optional<Index> budget, const Params& params, const Backend& backend) {
  Sizes out;
  out.t = params.integer("t");
  const Index pair = head.pair_bytes();
  const Index full = static_cast<Index>(stream.size()) * pair;
  out.all = given_budget(budget, "delta=") >= full;
  if (out.all) {
    return out;
  }
  const bool fixed = !params.is_auto("samples");
  const Index each = cluster_bytes(head, out.t);
  const Index smallest = kMuBytes + (fixed ? params.integer("samples") : 1) * pair + each;
  if (*budget < smallest) {
    refuse_budget(std::min(smallest, full), *budget);
  }
  const Index left = *budget - kMuBytes;
  const Index shared = floor_share(params.real("share"), left);
  out.samples =
      fixed ? params.integer("samples") : std::clamp<Index>(shared / pair, 1, (left - each) / pair);
  out.delta = smallest_delta(*backend.rows(head, HeadRows::keys, stream),
                             (left - out.samples * pair) / each);
  return out;
}

// delta determines the clusters. Pairs get the rest of a budget, or without one `share` of the
// bytes.
Sizes sizes_by_delta(const KvHead& head, std::span<const Index> stream, std::optional<Index> budget,
                     const Params& params, const Backend& backend) {
  Sizes out;
  out.t = params.integer("t");
  out.delta = params.real("delta");
  const bool fixed = !params.is_auto("samples");
  out.samples = fixed ? params.integer("samples") : 1;
  if (fixed && !budget) {
    return out;
  }
  const Clusters found = backend.rows(head, HeadRows::keys, stream)->online_clusters(out.delta);
  const Index clusters_bytes =
      static_cast<Index>(found.representatives.size()) * cluster_bytes(head, out.t);
  const Index pair = head.pair_bytes();
  if (budget) {
    const Index needed = kMuBytes + out.samples * pair + clusters_bytes;
    if (*budget < needed) {
      refuse_budget(needed, *budget);
    }
    out.samples = fixed ? out.samples : (*budget - kMuBytes - clusters_bytes) / pair;
  } else {
    const double share = params.real("share");
    const double bytes = static_cast<double>(clusters_bytes) * share / (1.0 - share);
    out.samples = std::max<Index>(1, static_cast<Index>(bytes / static_cast<double>(pair)));
  }
  return out;
}

Sizes sizes_of(const KvHead& head, std::span<const Index> stream, std::optional<Index> budget,
               const Params& params, const Backend& backend) {
  return params.is_auto("delta") ? sizes_by_budget(head, stream, budget, params, backend)
                                 : sizes_by_delta(head, stream, budget, params, backend);
}

double power(double x, Index n) {
  double out = 1.0;
  for (; n > 0; n >>= 1) {
    out *= (n & 1) != 0 ? x : 1.0;
    x *= x;
  }
  return out;
}

// Successes of `n` trials of probability p = 1 - q <= 1/2, by inversion of one uniform. n p must be
// small enough for q^n not to underflow.
Index binomial_by_inversion(RngStream& rng, Index n, double p, double q) {
  const double u = rng.next_uniform();
  double term = power(q, n);
  double sum = term;
  Index k = 0;
  while (u >= sum && k < n) {
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1) * (p / q);
    ++k;
    sum += term;
    // Terms fall past the mean, so the rest is below the rounding of the sum.
    if (term < 0x1p-60 && static_cast<double>(k) > static_cast<double>(n) * p) {
      break;
    }
  }
  return k;
}

// Successes of `n` trials of probability p. q = 1 - p is an argument because either may be tiny.
Index binomial(RngStream& rng, Index n, double p, double q) {
  if (p > q) {
    return n - binomial(rng, n, q, p);
  }
  constexpr double kMaxMean = 256.0;  // (1/2)^512 = 1e-154 at worst
  Index successes = 0;
  while (n > 0) {
    const bool whole = static_cast<double>(n) * p <= kMaxMean;
    const Index part = whole ? n : static_cast<Index>(kMaxMean / p);
    successes += binomial_by_inversion(rng, part, p, q);
    n -= part;
  }
  return successes;
}

// Each slot takes `token` with probability p, independently.
void draw(RngStream& rng, Index token, double p, double q, std::span<Index> slots) {
  const auto count = static_cast<Index>(slots.size());
  const Index changed = binomial(rng, count, p, q);
  if (changed == count) {
    std::fill(slots.begin(), slots.end(), token);
  } else if (changed > 0) {
    for (const Index slot : sample_without_replacement(rng, count, changed)) {
      slots[slot] = token;
    }
  }
}

float stored_weight(double w) {
  // Not infinite: a pair with 1e-38 of mu could be drawn.
  return static_cast<float>(std::min(w, static_cast<double>(std::numeric_limits<float>::max())));
}

struct Drawn {
  Index token;
  double weight;
};

// Appends each position of `slots` once, with `weight(token)` times its number of slots.
template <class Weight>
void collect(std::vector<Index> slots, Weight weight, std::vector<Drawn>& out) {
  std::sort(slots.begin(), slots.end());
  for (auto it = slots.begin(); it != slots.end();) {
    const auto next = std::upper_bound(it, slots.end(), *it);
    out.push_back({*it, static_cast<double>(next - it) * weight(*it)});
    it = next;
  }
}

void store(const std::vector<Drawn>& drawn, HeldTokens& out) {
  for (const Drawn& x : drawn) {
    out.tokens.push_back(x.token);
    out.weights.push_back(stored_weight(x.weight));
  }
}

class ClusterGen final : public TokenStream {
 public:
  /// `stream`: the tokens to come.
  ClusterGen(const KvHead& head, std::span<const Index> stream, std::optional<Index> budget,
             const Params& params, const Backend& backend, const Rng& rng)
      : head_(head),
        sizes_(sizes_of(head, stream, budget, params, backend)),
        clusters_(sizes_.all ? nullptr
                             : backend.clusters(head, HeadRows::keys, stream, sizes_.delta)),
        pairs_(sizes_.samples, Index{-1}),
        key_coins_(rng.stream("reservoir")),
        pair_coins_(rng.stream("values")) {}

  void take(Index token) override {
    if (sizes_.all) {
      every_.push_back(token);
      return;
    }
    update_normalizer(token);
    update_product(token);
  }

  Compressed view() const override {
    if (sizes_.all) {
      Compressed out = hold(every_);
      out.diag = diag(static_cast<double>(every_.size()));
      return out;
    }
    Compressed out;
    std::vector<Drawn> drawn;
    if (mu_ > 0.0) {
      const auto samples = static_cast<double>(sizes_.samples);
      collect(
          pairs_,
          [&](Index i) { return mu_ / (samples * squared_norm(head_.v.view().row_span(i))); },
          drawn);
    }
    store(drawn, out.held);
    out.diag = diag(std::accumulate(drawn.begin(), drawn.end(), 0.0,
                                    [](double sum, const Drawn& x) { return sum + x.weight; }));
    drawn.clear();
    const auto t = static_cast<std::size_t>(sizes_.t);
    for (std::size_t c = 0; c < counts_.size(); ++c) {
      const auto from = keys_.begin() + static_cast<std::ptrdiff_t>(c * t);
      const double each = static_cast<double>(counts_[c]) / static_cast<double>(t);
      collect(
          {from, from + static_cast<std::ptrdiff_t>(t)}, [&](Index) { return each; }, drawn);
    }
    std::ranges::sort(drawn, {}, &Drawn::token);
    out.denominator.emplace();
    store(drawn, out.denominator->held);
    const auto clusters = static_cast<Index>(counts_.size());
    out.payload_bytes = sizes_.samples * head_.pair_bytes() +
                        clusters * (cluster_bytes(head_, sizes_.t) - kCountBytes);
    out.aux_bytes = kMuBytes + clusters * kCountBytes;
    return out;
  }

 private:
  // UpdateSoftmaxNormalizer.
  void update_normalizer(Index token) {
    const auto cluster = static_cast<std::size_t>(clusters_->next());
    const auto t = static_cast<std::size_t>(sizes_.t);
    if (cluster == counts_.size()) {
      counts_.push_back(1);
      keys_.insert(keys_.end(), t, token);
      return;
    }
    const auto n = static_cast<double>(++counts_[cluster]);
    draw(key_coins_, token, 1.0 / n, (n - 1.0) / n, std::span(keys_).subspan(cluster * t, t));
  }

  // UpdateMatrixProduct.
  void update_product(Index token) {
    const double square = squared_norm(head_.v.view().row_span(token));
    if (square > 0.0) {
      const double before = mu_;
      mu_ += square;
      draw(pair_coins_, token, square / mu_, before / mu_, pairs_);
    }
  }

  Figures diag(double weight_sum) const {
    return {{"clusters", fmt::format("{}", counts_.size())},
            {"weight_sum", fmt::format("{:.9g}", weight_sum)},
            {"delta", fmt::format("{:.9g}", sizes_.delta)},
            {"samples", fmt::format("{}", sizes_.samples)}};
  }

  const KvHead& head_;
  Sizes sizes_;
  std::unique_ptr<ClusterStream> clusters_;
  std::vector<Index> counts_;  // [clusters]
  std::vector<Index> keys_;    // [clusters, t] positions
  std::vector<Index> pairs_;   // [samples] positions; -1 before the first nonzero value
  double mu_ = 0.0;
  std::vector<Index> every_;
  RngStream key_coins_;
  RngStream pair_coins_;
};

// Slots of keys and pairs. A budget of the bytes of `kept` tokens bounds them, delta does not.
Index most_slots(const Params& p, const LayerFacts& l, Index kept) {
  if (p.is_auto("delta")) {
    return kept * (l.d + l.dv) / l.d + kept;
  }
  const Index keys = l.n * p.integer("t");
  if (!p.is_auto("samples")) {
    return keys + p.integer("samples");
  }
  const double share = p.real("share");  // a key weighs less than a pair
  return keys + static_cast<Index>(share / (1.0 - share) * static_cast<double>(2 * l.n + keys));
}

Compressed compress(const Task& task, const Params& params) {
  if (task.tokens.empty()) {
    return {};
  }
  ClusterGen cache(task.head, task.tokens, task.budget_bytes, params, task.backend, task.rng);
  for (const Index i : task.tokens) {
    cache.take(i);
  }
  return cache.view();
}

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<ClusterGen>(task.head, stream_tokens(task), task.budget_bytes, params,
                                      task.backend, task.rng);
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "clustergen";
  info.family = Family::sampling;
  info.copies = 1;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    return 3 * 8 * most_slots(p, l, kept);  // positions, while a list grows or is drawn from
  };
  info.holds = Holds::placed;
  info.not_quantizable = "it samples two sets";
  info.summary =
      "denominator from sampled keys of online clusters, numerator from pairs sampled by |v|^2";
  info.source =
      "Zandieh et al., ClusterGen: Token Generation in Sublinear Time and Memory with Clustering "
      "KV Cache, Algorithm 1";
  info.departures =
      "<q,k> is s<q,k>; one binomial draw per list instead of a coin per slot (the same law); zero "
      "values are never drawn; delta=auto and samples=auto read the whole stream ahead; a budget "
      "for all tokens holds all tokens";
  info.params = {
      real_param("delta", "auto", 0, 1e300, "key distance",
                 "radius of a cluster, in place of a budget; auto: the smallest whose clusters of "
                 "this stream fit the budget"),
      integer_param("t", "8", 1, 1e6, "keys",
                    "keys sampled uniformly, with replacement, from each cluster; larger improves "
                    "the denominator and leaves bytes for fewer clusters"),
      integer_param("samples", "auto", 1, 1e9, "tokens",
                    "(k,v) pairs drawn with probability |v|^2/mu; auto: what fits into `share`, or "
                    "with delta and a budget what the clusters leave"),
      real_param("share", "0.5", 0.001, 0.999, "",
                 "fraction of the bytes for (k,v) pairs; ignored if `samples` is given"),
  };
  info.grid = {"t=2,8,32;share=0.1,0.25,0.5,0.75"};
  info.sizes = {"delta"};
  info.facts = [](const Params&) { return JobFacts{.random = true}; };
  return {info, compress, open_stream};
}

}  // namespace kvbench::method_clustergen
