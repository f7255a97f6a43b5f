// d2o: evicts as h2o does; an evicted token whose key is similar enough to a kept one is merged
// into it, the others are dropped.
// [1] Wan et al., "D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of
//     Large Language Models", ICLR 2025, arXiv:2406.13035, section 3.3.
// [2] github.com/AIoT-MLSys-Lab/D2O, modeling_llama3_7b_13b_d2o.py.
// One pass over the evicted tokens in order of position. u_i is the largest cosine of token i's key
// to the keys of the kept tokens. A threshold tau starts at the first u and becomes
// ema u + (1 - ema) tau at every evicted token; one with u below tau as it was before is dropped.
// A kept token c that tokens i are merged into becomes, key and value alike,
//   (e x_c + sum_i e^u_i x_i) / (e + sum_i e^u_i),
// and counts as one token in the softmax: no weight, no bytes beside the pair.
// Departs from [1] and its public code [2]: every head and layer has the same budget ([1]: by the
// variance of attention), and there is one set and one threshold per KV head ([2]: one threshold
// for all heads, of mean similarities); the cache is compressed once, after the prompt, and merges
// are all of kept keys and values as they were ([1] goes on while decoding and merges into what it
// merged before); the threshold moves with every evicted token ([2]: once per step, and a token is
// compared with it after the update); weights are [1]'s exponentials ([2]: the similarities, in a
// plain mean); a u that is below tau by no more than rounding counts as equal to it. Keys are those
// of the trace, so after rotary embedding, and are averaged as such.
//
// In: K [m, d], V [m, dv], accumulated attention [m]. Out: B tokens of weight 1; those that nothing
// was merged into are held as they are, the others made. A zero key has cosine 0 to everything;
// ties go to the lowest position. float64, positions ascending, one rounding to the trace's type.
// Time O((m - B) B d), memory O(256 B).
#include <fmt/format.h>

#include <cmath>

#include "algorithms/heavy_recent.hpp"
#include "attention/most_similar.hpp"
#include "core/float16.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

// Equal keys of different length have cosines that differ by some 1e-15; keys of float16 that are
// not parallel have cosines that differ by far more.
constexpr double kCosineRounding = 1e-12;

/// A kept token and what it takes in.
struct Receiver {
  Index place = 0;  // among the kept tokens
  std::vector<Index> tokens;
  std::vector<double> weights;  // e^u of each
};

double cosine(MatrixView keys, Index a, Index b) {
  const Index pair[] = {a, b};
  const std::vector<double> inverse = inverse_norms(keys, pair);
  double product = 0.0;
  for (Index t = 0; t < keys.cols; ++t) {
    product =
        std::fma(static_cast<double>(keys.row(a)[t]), static_cast<double>(keys.row(b)[t]), product);
  }
  return product * inverse[0] * inverse[1];
}

// Row `onto` of `from` with the receiver's tokens merged into it.
void merge(MatrixView from, Index onto, const Receiver& receiver, DType type, float* out) {
  const double own = exp_shared(1.0);
  double whole = own;
  for (const double w : receiver.weights) {
    whole += w;
  }
  for (Index t = 0; t < from.cols; ++t) {
    double sum = own * static_cast<double>(from.row(onto)[t]);
    for (std::size_t i = 0; i < receiver.tokens.size(); ++i) {
      sum += receiver.weights[i] * static_cast<double>(from.row(receiver.tokens[i])[t]);
    }
    out[t] = stored(type, sum / whole);
  }
}

// What each kept token takes in; those that take nothing have no receiver. By place.
std::vector<Receiver> receivers_of(const Task& task, const std::vector<Index>& kept,
                                   const std::vector<Index>& evicted, double ema) {
  const std::vector<Index> nearest = most_similar(task.head, kept, evicted, task.device);
  std::vector<Receiver> all(kept.size());
  double threshold = 0.0;
  for (std::size_t i = 0; i < evicted.size(); ++i) {
    const auto place = static_cast<std::size_t>(nearest[i]);
    const double u = cosine(task.head.k, evicted[i], kept[place]);
    threshold = i == 0 ? u : threshold;
    if (u >= threshold - kCosineRounding) {
      all[place].tokens.push_back(evicted[i]);
      all[place].weights.push_back(exp_shared(u));
    }
    threshold += ema * (u - threshold);
  }
  std::vector<Receiver> out;
  for (std::size_t place = 0; place < all.size(); ++place) {
    if (!all[place].tokens.empty()) {
      all[place].place = static_cast<Index>(place);
      out.push_back(std::move(all[place]));
    }
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index count = tokens_to_keep(task, params, head.pair_bytes());
  Compressed out;
  if (count == 0) {
    out.diag = {{"merged", "0"}};
    return out;
  }
  const Split split = split_heavy_recent(task, params, count);
  const std::vector<Index> kept = tokens_at(task, split.kept);
  const std::vector<Index> evicted = tokens_at(task, split.evicted);
  const std::vector<Receiver> receivers = receivers_of(task, kept, evicted, params.real("ema"));
  std::size_t merged = 0;
  std::size_t next = 0;
  out.made.k = Matrix(static_cast<Index>(receivers.size()), head.d());
  out.made.v = Matrix(static_cast<Index>(receivers.size()), head.dv());
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (next == receivers.size() || receivers[next].place != static_cast<Index>(i)) {
      out.held.tokens.push_back(kept[i]);
      continue;
    }
    const auto row = static_cast<Index>(next);
    merge(head.k, kept[i], receivers[next], head.dtype, out.made.k.row(row));
    merge(head.v, kept[i], receivers[next], head.dtype, out.made.v.row(row));
    merged += receivers[next].tokens.size();
    ++next;
  }
  out.diag = {{"merged", fmt::format("{}", merged)}};
  return out;
}

}  // namespace

Method method_d2o() {
  MethodInfo info;
  info.name = "d2o";
  info.summary =
      "h2o's eviction; evicted tokens merged into similar kept keys, below a running threshold "
      "dropped";
  info.source = "Wan et al., ICLR 2025, arXiv:2406.13035, section 3.3";
  info.departures =
      "equal budgets over layers, one set and one threshold per KV head; compressed once after the "
      "prompt, merged into kept tokens as they were; the threshold moves token by token (within "
      "1e-12 counts as equal); the paper's exponential weights, not its public code's";
  info.params = size_params();
  for (const ParamSpec& p : heavy_recent_params()) {
    info.params.push_back(p);
  }
  info.params.push_back(real_param(
      "ema", "0.7", 0, 1, "",
      "share of the newest evicted token in the threshold below which tokens are dropped; larger "
      "follows the latest similarities, smaller stays at the first ones"));
  info.grid = {"heavy_ratio=0.1,0.25,0.5,0.75;ema=0.5,0.7,0.9"};
  info.sizes = size_names();
  info.scores = true;
  return {info, compress};
}

}  // namespace kvbench
