// triattention: the tokens with the largest attention expected of the mean query in the future.
// [1] Mao et al., "TriAttention: Efficient Long Reasoning with Trigonometric KV Compression", 2026,
//     arXiv:2604.04921.
// [2] Its public code, github.com/WeianMao/triattention c3744ee, methods/pruning_utils.py.
// Two channels that turn together are a complex number. Of a query head's un-rotated scoring
// queries E_f = mean q_f and M_f = mean |q_f|. With w_f the pair's frequency, r_f its amplitude in
// the tables and t the prompt's end, a key k at p scores the mean (or maximum) over o = 1, 2, 4, ..
//   sum_f r_f^2 (|E_f||k_f| cos(w_f (t - p + o) + arg(E_f conj k_f)) + (M_f - |E_f|) |k_f|),
// reduced over the group: inner products of E_f turned by o with k_f turned by p - t.
// In: Q [., d], K [m, d], rotary tables. Out: B tokens of weight 1. float64. Time O(group |queries|
// d + m d group offsets).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numeric>

#include "algorithms/shared/leverage_scores.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/rope.hpp"
#include "core/shared_work.hpp"

namespace kvbench::method_triattention {
namespace {

constexpr Index kSlab = 256;  // keys per block

// Writes columns [first, first + offsets.size()) of `out`, with which key_rows are multiplied.
void add_query_head(const Task& task, Index g, const std::vector<double>& w,
                    const std::vector<double>& offsets, Index first, MatrixD& out) {
  const RopeTables& tables = *task.rope;
  const Index begin = std::max(task.scoring.begin, task.head.q_start());
  const auto count = static_cast<double>(std::max<Index>(1, task.scoring.end - begin));
  std::vector<std::complex<double>> mean(w.size());
  std::vector<double> length(w.size(), 0.0);
  for (Index j = begin; j < task.scoring.end; ++j) {
    const auto query =
        unrotated_pairs(tables, j, task.head.q[g].view().row_span(j - task.head.q_start()));
    for (std::size_t f = 0; f < w.size(); ++f) {
      mean[f] += query[f] / count;
      length[f] += std::sqrt(std::norm(query[f])) / count;
    }
  }
  const auto pairs = static_cast<Index>(w.size());
  for (Index f = 0; f < pairs; ++f) {
    const std::complex<double> at_0(tables.cos.row(0)[f], tables.sin.row(0)[f]);
    for (std::size_t o = 0; o < offsets.size(); ++o) {
      const Index column = first + static_cast<Index>(o);
      const auto turned = std::norm(at_0) * mean[f] * std::polar(1.0, w[f] * offsets[o]);
      out.row(f)[column] = turned.real();
      out.row(pairs + f)[column] = turned.imag();
      out.row(2 * pairs + f)[column] =
          std::norm(at_0) * (length[f] - std::sqrt(std::norm(mean[f])));
    }
  }
}

// [tokens, 3 pairs]: real and imaginary parts of keys turned by p - t, lengths.
MatrixD key_rows(const Task& task, std::span<const Index> tokens, const std::vector<double>& w) {
  const auto pairs = static_cast<Index>(w.size());
  MatrixD out(static_cast<Index>(tokens.size()), 3 * pairs);
  for (Index i = 0; i < out.rows(); ++i) {
    const auto key = unrotated_pairs(*task.rope, tokens[i], task.head.k.view().row_span(tokens[i]));
    const auto distance = static_cast<double>(tokens[i] - task.evaluated.begin);
    for (Index f = 0; f < pairs; ++f) {
      const auto turned = key[f] * std::polar(1.0, w[f] * distance);
      out.row(i)[f] = turned.real();
      out.row(i)[pairs + f] = turned.imag();
      out.row(i)[2 * pairs + f] = std::sqrt(std::norm(key[f]));
    }
  }
  return out;
}

// [group][m]
ScoreBook::Scores scores_of(const Task& task, bool largest, Index max_offset) {
  const std::vector<double> w = frequencies(*task.rope);
  std::vector<double> offsets;
  for (Index o = 1; o <= max_offset; o *= 2) {
    offsets.push_back(static_cast<double>(o));
  }
  const auto each = static_cast<Index>(offsets.size());
  const Index group = task.head.group();
  MatrixD columns(3 * static_cast<Index>(w.size()), group * each);
  share_work(group, [&](Index g) { add_query_head(task, g, w, offsets, g * each, columns); });
  ScoreBook::Scores out(group, std::vector<double>(task.tokens.size()));
  share_work((task.count() + kSlab - 1) / kSlab, [&](Index slab) {
    const Index begin = slab * kSlab;
    const auto tokens = task.tokens.subspan(begin, std::min(kSlab, task.count() - begin));
    MatrixD products;
    inner_products(key_rows(task, tokens, w), columns, products);
    for (Index i = 0; i < products.rows(); ++i) {
      for (Index g = 0; g < group; ++g) {
        const std::span own(products.row(i) + g * each, offsets.size());
        out[g][begin + i] =
            largest ? std::ranges::max(own)
                    : std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(each);
      }
    }
  });
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const bool largest = params.text("aggregate") == "max";
  const Index max_offset = params.integer("max_offset");
  const auto scores = whole_scores(task, fmt::format("triattention {} {}", largest, max_offset),
                                   [&] { return scores_of(task, largest, max_offset); });
  return hold_top(task, params, reduce_group(scores, reduce_of(params)));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "triattention";
  info.family = Family::eviction;
  info.summary = "largest attention that the mean query expects at future distances";
  info.source = "Mao et al., 2026, arXiv:2604.04921; github.com/WeianMao/triattention c3744ee";
  info.departures =
      "statistics of the head's own scoring queries, not of a calibration set; one set per KV head "
      "(code: one for all heads, by the largest score); the prompt is compressed once (code: what "
      "is generated, every 128 tokens); no noise on ties; frequencies from the tables";
  info.params = size_params(
      {choice_param("aggregate", {"mean", "max"}, "how the scores at the offsets become one"),
       integer_param("max_offset", "65536", 1, 1e9, "tokens",
                     "farthest distance behind the prompt; offsets double from 1 on; larger "
                     "favours pairs that turn slowly"),
       reduce_param()});
  info.grid = {"aggregate=mean,max;reduce=mean,max", "max_offset=256,4096"};
  info.holds = Holds::tokens;
  info.resolve = require_rope_tables;
  info.facts = [](const Params&) { return JobFacts{.scoring = {Scoring()}, .rope = true}; };
  return {info, compress};
}

}  // namespace kvbench::method_triattention
