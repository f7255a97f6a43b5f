// compactor: leverage of the keys blended with non-causal attention within chunks.
// [1] Chari, Van Durme, "Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate
//     Leverage Scores", 2025, arXiv:2507.08143.
// [2] Its code in NVIDIA/kvpress, commit 8bb29b9: CompactorPress, NonCausalAttnPress.
// The task's first 8 and last 4 tokens rank highest and enter no score. Of the others:
//   l  leverage (leverage_scores.hpp);
//   a  per query head, in chunks of 256 tokens: softmax over the chunk's keys of <k, q> (without
//      the scale) summed over the chunk's queries; a short last chunk is padded with zero keys and
//      queries, which count; reduced over the group, times |v|, then the mean of three neighbours,
//      where a missing one counts as 0.
// Both become z-scores over all KV heads of the layer (n - 1; deviations of at least 1e-6). The
// score is blending * l + a, blending = 1 - B/m unless given.
// Survey: l and a [m - 12 each]. Share: both means and deviations. A head without a share is
// treated as a layer of its own.
// In: K [m, d], Q of the task's tokens, V [m, dv]. Out: B tokens of weight 1.
// float64. Time O(group m chunk d) beside leverage; memory O(m d + 256 chunk).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "algorithms/shared/leverage_scores.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/math.hpp"

namespace kvbench::method_compactor {
namespace {

constexpr double kMinDeviation = 1e-6;  // [2]'s
constexpr std::size_t kRows = 256;      // queries at a time

// Indices of the scored tokens.
Range inner_of(const Task& task, const Params& params) {
  const Index m = task.count();
  const Index first = std::min(m, params.integer("first"));
  return {first, m - std::min(m - first, params.integer("last"))};
}

// Attention that each token gets from its chunk's queries, [tokens].
std::vector<double> chunk_attention(const Task& task, const Matrix& queries,
                                    std::span<const Index> tokens, std::size_t chunk) {
  const KvHead& head = task.head;
  std::vector<double> out(tokens.size(), 0.0);
  MatrixD keys, keys_t, rows, logits;
  for (std::size_t b = 0; b < tokens.size(); b += chunk) {
    const std::span<const Index> part = tokens.subspan(b, std::min(chunk, tokens.size() - b));
    const auto fillers = static_cast<double>(chunk - part.size());
    std::vector<Index> scored;  // rows of `queries`
    for (const Index i : part) {
      if (i >= std::max(task.scoring.begin, head.q_start()) && i < task.scoring.end) {
        scored.push_back(i - head.q_start());
      }
    }
    gather_rows(head.k, part, keys);
    transpose(keys, keys_t);
    for (std::size_t r = 0; r < scored.size(); r += kRows) {
      gather_rows(queries, std::span(scored).subspan(r, std::min(kRows, scored.size() - r)), rows);
      inner_products(rows, keys_t, logits);
      for (Index j = 0; j < logits.rows(); ++j) {
        double* row = logits.row(j);
        double shift = *std::max_element(row, row + part.size());
        shift = fillers > 0.0 ? std::max(shift, 0.0) : shift;
        double z = fillers > 0.0 ? fillers * exp_shared(-shift) : 0.0;
        for (std::size_t i = 0; i < part.size(); ++i) {
          row[i] = exp_shared(row[i] - shift);
          z += row[i];
        }
        for (std::size_t i = 0; i < part.size(); ++i) {
          out[b + i] += row[i] / z;
        }
      }
    }
    for (std::size_t i = 0; i < part.size(); ++i) {
      out[b + i] += fillers / static_cast<double>(chunk);  // zero queries attend uniformly
    }
  }
  return out;
}

std::vector<double> attention_scores(const Task& task, const Params& params,
                                     std::span<const Index> tokens) {
  std::vector<std::vector<double>> heads;
  for (const Matrix& queries : task.head.q) {
    heads.push_back(
        chunk_attention(task, queries, tokens, static_cast<std::size_t>(params.integer("chunk"))));
  }
  std::vector<double> heavy = reduce_group(heads, reduce_of(params));
  for (std::size_t i = 0; i < heavy.size(); ++i) {
    heavy[i] *= std::sqrt(squared_norm(task.head.v.view().row_span(tokens[i])));
  }
  std::vector<double> out;
  for (std::size_t i = 0; i < heavy.size(); ++i) {
    const double before = i > 0 ? heavy[i - 1] : 0.0;
    const double after = i + 1 < heavy.size() ? heavy[i + 1] : 0.0;
    out.push_back((before + heavy[i] + after) / 3.0);
  }
  return out;
}

std::string book_key(const Params& params) {
  return fmt::format("compactor attention {} {} {} {}", params.text("chunk"), params.text("reduce"),
                     params.text("first"), params.text("last"));
}

// l, then a, of the scored tokens.
std::vector<double> both_scores(const Task& task, const Params& params) {
  const Range inner = inner_of(task, params);
  const std::span<const Index> tokens = task.tokens.subspan(inner.begin, inner.size());
  std::vector<double> out = leverage_scores(task, tokens, params);
  // Settings of one head share it.
  const std::vector<double> attention =
      whole_scores(task, book_key(params), [&] {
        return ScoreBook::Scores{attention_scores(task, params, tokens)};
      }).front();
  out.insert(out.end(), attention.begin(), attention.end());
  return out;
}

Survey survey(const Task& task, const Params& params) {
  return {pairs_to_keep(task, params), both_scores(task, params)};
}

// Mean and deviation (n - 1) of one half of all heads' values.
std::array<double, 2> moments_of(std::span<const Survey> surveys, bool second) {
  const auto each = [&](const auto& use) {
    for (const Survey& s : surveys) {
      const std::size_t half = s.data.size() / 2;
      for (std::size_t i = 0; i < half; ++i) {
        use(s.data[second ? half + i : i]);
      }
    }
  };
  double count = 0.0;
  double mean = 0.0;
  each([&](double x) {
    mean += x;
    count += 1.0;
  });
  mean /= std::max(1.0, count);
  double square = 0.0;
  each([&](double x) { square += (x - mean) * (x - mean); });
  const double deviation = std::sqrt(square / std::max(1.0, count - 1.0));
  return {mean, std::max(deviation, kMinDeviation)};
}

std::vector<Share> share(std::span<const Survey> surveys, const Params&) {
  const std::array<double, 2> l = moments_of(surveys, false);
  const std::array<double, 2> a = moments_of(surveys, true);
  const auto moments =
      std::make_shared<std::vector<double>>(std::initializer_list<double>{l[0], l[1], a[0], a[1]});
  std::vector<Share> out;
  for (const Survey& s : surveys) {
    out.push_back({s.tokens, moments});
  }
  return out;
}

// Surveys' scores are not kept: a row's time includes the head's.
Compressed compress(const Task& task, const Params& params) {
  const Share mine = share_of(task, params, survey, share);
  const std::vector<double>& moments = *mine.data;
  const std::vector<double> both = both_scores(task, params);
  const std::size_t half = both.size() / 2;
  const double blending = params.is_auto("blending")
                              ? 1.0 - static_cast<double>(mine.tokens) /
                                          static_cast<double>(std::max<Index>(1, task.count()))
                              : params.real("blending");
  std::vector<double> scores(task.tokens.size(), std::numeric_limits<double>::max());
  double* inner = scores.data() + inner_of(task, params).begin;
  for (std::size_t i = 0; i < half; ++i) {
    inner[i] =
        blending * (both[i] - moments[0]) / moments[1] + (both[half + i] - moments[2]) / moments[3];
  }
  return hold(keep_top(task.tokens, scores, mine.tokens));
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "compactor";
  info.family = Family::eviction;
  info.copies = 2;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    const Index logits = 8 * static_cast<Index>(kRows) * std::min(l.n, p.integer("chunk"));
    return std::max(logits, leverage_bytes(p, l, kept));
  };
  info.summary = "leverage of un-rotated keys, blended with non-causal attention within chunks";
  info.source = "Chari and Van Durme, 2025, arXiv:2507.08143; NVIDIA/kvpress 8bb29b9";
  info.departures =
      "centred, chunked and normalised over the middle (kvpress: over all tokens), in float64; "
      "first and last tokens rank by position; queries that the trace lacks add nothing";
  info.params = size_params(
      {sketch_param(),
       integer_param("chunk", "256", 1, 1e6, "tokens",
                     "tokens whose queries attend to each other's keys; larger compares over "
                     "longer stretches and is slower"),
       real_param("blending", "auto", 0, 1e6, "",
                  "weight of the leverage's z-score; larger favours unusual keys; auto: 1 - B/m"),
       integer_param("first", "8", 0, 1e9, "tokens",
                     "oldest tokens of the middle, which rank highest"),
       integer_param("last", "4", 0, 1e9, "tokens", "newest tokens of the middle, which rank next"),
       reduce_param()});
  info.grid = {"blending=auto,0,0.25,0.5,1"};
  info.holds = Holds::tokens;
  info.resolve = require_rope_tables;
  info.facts = [](const Params& p) {
    return JobFacts{.scoring = {{.middle = true}},
                    .rope = true,
                    .random = draws_sketch(p),
                    .scope = Scope::layer};
  };
  return {info, compress, nullptr, survey, share};
}

}  // namespace kvbench::method_compactor
