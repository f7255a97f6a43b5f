// d2o: evicts as h2o does. An evicted token whose key is similar enough to a kept one is merged
// into it, the others are dropped.
// [1] Wan et al., "D2O: Dynamic Discriminative Operations for Efficient Long-Context Inference of
//     Large Language Models", ICLR 2025, arXiv:2406.13035, section 3.3.
// [2] github.com/AIoT-MLSys-Lab/D2O, modeling_llama3_7b_13b_d2o.py.
// One pass over the evicted tokens by position. u_i is the largest cosine of token i's key to the
// kept keys. The threshold tau starts at the first u and becomes ema u + (1 - ema) tau after every
// evicted token; a token with u below the tau before its own update is dropped ([2]: tau moves once
// per step, before the comparison). A kept token c that tokens i are merged into becomes, key and
// value alike,
//   (e x_c + sum_i e^u_i x_i) / (e + sum_i e^u_i),
// without a weight in the softmax. All merges are with kept keys and values as they were ([1] goes
// on while decoding, into merged ones). Keys are averaged after rotary embedding.
// In: K [m, d], V [m, dv], accumulated attention [m]. Out: B tokens of weight 1; unmerged ones are
// held, the others made. A zero key has cosine 0 to everything; ties go to the lowest position.
// float64, positions ascending, one rounding. Time O((m - B) B d), memory O(256 B).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/shared/heavy_recent.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/nearest_keys.hpp"
#include "core/float16.hpp"
#include "core/math.hpp"

namespace kvbench::method_d2o {
namespace {

// Above the 1e-15 by which cosines of parallel keys differ, far below that of other float16 keys.
constexpr double kCosineRounding = 1e-12;

// Tokens merged into one kept token.
struct Receiver {
  std::vector<Index> tokens;
  std::vector<double> weights;  // e^u of each
};

// Merges the receiver's tokens into `row`, the kept token's.
void merge(MatrixView from, const Receiver& receiver, DType type, float* row) {
  const double own = exp_shared(1.0);
  double whole = own;
  for (const double w : receiver.weights) {
    whole += w;
  }
  for (Index t = 0; t < from.cols; ++t) {
    double sum = own * static_cast<double>(row[t]);
    for (std::size_t i = 0; i < receiver.tokens.size(); ++i) {
      sum += receiver.weights[i] * static_cast<double>(from.row(receiver.tokens[i])[t]);
    }
    row[t] = stored(type, sum / whole);
  }
}

// By index into split.kept.
std::vector<Receiver> receivers_of(const Task& task, const Split& split, double ema) {
  const std::vector<Index> target = task.backend.nearest_keys(task.head, split.kept, split.evicted);
  const std::vector<double> cosine = cosines(task.head.k, split, target);
  std::vector<Receiver> out(split.kept.size());
  double threshold = cosine.empty() ? 0.0 : cosine.front();
  for (std::size_t i = 0; i < target.size(); ++i) {
    const double u = cosine[i];
    if (u >= threshold - kCosineRounding) {
      out[target[i]].tokens.push_back(split.evicted[i]);
      out[target[i]].weights.push_back(exp_shared(u));
    }
    threshold += ema * (u - threshold);
  }
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index count = pairs_to_keep(task, params);
  Compressed out;
  out.diag = {{"merged", "0"}};
  if (count == 0) {
    return out;
  }
  const Split split = split_heavy_recent(task, params, count);
  const std::vector<Receiver> receivers = receivers_of(task, split, params.real("ema"));
  out = hold_unchanged(head, split.kept,
                       [&](std::size_t place) { return !receivers[place].tokens.empty(); });
  std::size_t merged = 0;
  Index row = 0;
  for (const Receiver& r : receivers) {
    if (!r.tokens.empty()) {
      merge(head.k, r, head.dtype, out.made.k.row(row));
      merge(head.v, r, head.dtype, out.made.v.row(row));
      merged += r.tokens.size();
      ++row;
    }
  }
  out.diag = {{"merged", fmt::format("{}", merged)}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "d2o";
  info.family = Family::merging;
  info.copies = 2.5;
  info.summary =
      "h2o's eviction; evicted tokens join similar kept keys, or are dropped below a running "
      "threshold";
  info.source = "Wan et al., ICLR 2025, arXiv:2406.13035, section 3.3";
  info.departures =
      "equal budgets over layers, one set and one threshold per KV head; compressed once after the "
      "prompt, merged into kept tokens as they were; the threshold moves token by token (cosines "
      "within 1e-12 are equal); the paper's exponential weights, not its public code's";
  info.params = heavy_recent_params(
      {real_param("ema", "0.7", 0, 1, "",
                  "weight of the newest evicted token in the threshold below which tokens are "
                  "dropped; larger follows the latest similarities")});
  info.grid = {"heavy_ratio=0.1,0.25,0.5,0.75;ema=0.5,0.7,0.9"};
  info.facts = [](const Params&) { return JobFacts{.scoring = {Scoring()}}; };
  return {info, compress};
}

}  // namespace kvbench::method_d2o
