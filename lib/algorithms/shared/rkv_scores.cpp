#include "algorithms/shared/rkv_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/inner_products.hpp"
#include "core/math.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr Index kTile = 128;          // rows and columns of cosines at a time, tokens of logits
constexpr Index kQueries = 8;         // queries with logits over all tokens at a time
constexpr double kBesideNorm = 1e-8;  // [2]'s, maps a zero key to zero
constexpr double kAboveAllScores = 2.0;

// In place, of at least one number, with one more logit `sink` (-inf: none).
void softmax(std::span<double> x, double sink = -std::numeric_limits<double>::infinity()) {
  const double shift = std::max(*std::max_element(x.begin(), x.end()), sink);
  if (std::isinf(shift)) {  // no token is visible
    std::ranges::fill(x, 0.0);
    return;
  }
  double sum = std::isinf(sink) ? 0.0 : exp_shared(sink - shift);
  for (double& e : x) {
    e = exp_shared(e - shift);
    sum += e;
  }
  for (double& e : x) {
    e /= sum;
  }
}

// out [queries, seen]: each query's logits over the tokens, reduced over the group; -inf: not seen.
void reduced_logits(const KvHead& head, std::span<const Index> seen, Range queries,
                    bool largest_logit, MatrixD& out) {
  const Index group = head.group();
  MatrixD rows(queries.size() * group, head.d());
  for (Index r = 0; r < rows.rows(); ++r) {
    std::copy_n(head.q[r % group].row(queries.begin + r / group - head.q_start()), head.d(),
                rows.row(r));
  }
  out.resize(queries.size(), static_cast<Index>(seen.size()));
  MatrixD keys, keys_t, logits;
  for (Index begin = 0; begin < out.cols(); begin += kTile) {
    const auto tokens = seen.subspan(begin, std::min(kTile, out.cols() - begin));
    gather_rows(head.k, tokens, keys);
    transpose(keys, keys_t);
    inner_products(rows, keys_t, logits);
    for (Index j = 0; j < queries.size(); ++j) {
      const Range visible = head.visible(queries.begin + j);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        double sum = 0.0;
        double largest = 0.0;
        for (Index g = 0; g < group; ++g) {
          const double logit = head.scale * logits.row(j * group + g)[i];
          sum += logit;
          largest = g == 0 ? logit : std::max(largest, logit);
        }
        double& to = out.row(j)[begin + static_cast<Index>(i)];
        to = largest_logit ? largest : sum / static_cast<double>(group);
        if (!visible.contains(tokens[i])) {
          to = -std::numeric_limits<double>::infinity();
        }
      }
    }
  }
}

// [seen]: importance of the tokens before the queries.
std::vector<double> importance(const KvHead& head, std::span<const Index> seen, Range queries,
                               bool largest_logit) {
  std::vector<double> out(seen.size(), 0.0);
  if (seen.empty() || queries.size() == 0) {
    return out;
  }
  double sink = sink_logit(head, 0);
  for (Index g = 1; g < head.group(); ++g) {
    sink = largest_logit ? std::max(sink, sink_logit(head, g)) : sink + sink_logit(head, g);
  }
  sink = largest_logit ? sink : sink / static_cast<double>(head.group());
  MatrixD weights;
  for (Index begin = queries.begin; begin < queries.end; begin += kQueries) {
    reduced_logits(head, seen, {begin, std::min(begin + kQueries, queries.end)}, largest_logit,
                   weights);
    for (Index j = 0; j < weights.rows(); ++j) {
      softmax({weights.row(j), seen.size()}, sink);
      add(1.0, weights.row(j), weights.cols(), out.data());
    }
  }
  for (double& x : out) {
    x /= static_cast<double>(queries.size());
  }
  return out;
}

class Directions {
 public:
  Directions(const KvHead& head, std::span<const Index> cache) : keys_(head.k), cache_(cache) {
    norms_.reserve(cache.size());
    for (const Index i : cache) {
      norms_.push_back(std::sqrt(squared_norm(keys_.row_span(i))) + kBesideNorm);
    }
  }

  Index count() const { return static_cast<Index>(cache_.size()); }
  Index d() const { return keys_.cols; }
  double at(Index place, Index t) const {
    return static_cast<double>(keys_.row(cache_[place])[t]) / norms_[place];
  }
  void write(Index place, double* out) const {
    for (Index t = 0; t < d(); ++t) {
      out[t] = at(place, t);
    }
  }

 private:
  MatrixView keys_;
  std::span<const Index> cache_;
  std::vector<double> norms_;
};

// By column: the sum of the entries removed from rows, each at its last similar token.
std::vector<double> lost_to_newer(const Directions& keys, double threshold) {
  std::vector<double> lost(keys.count(), 0.0);
  std::vector<Index> open(keys.count());  // rows without a similar token so far, ascending
  std::iota(open.begin(), open.end(), Index{0});
  MatrixD columns;
  MatrixD columns_t;
  MatrixD rows;
  MatrixD cosines;
  for (Index end = keys.count(); end > 0 && !open.empty(); end -= columns.rows()) {
    const Index begin = std::max<Index>(0, end - kTile);
    columns.resize(end - begin, keys.d());
    for (Index c = begin; c < end; ++c) {
      keys.write(c, columns.row(c - begin));
    }
    transpose(columns, columns_t);
    std::size_t still = 0;
    for (std::size_t first = 0; first < open.size(); first += kTile) {
      const std::size_t last = std::min(open.size(), first + kTile);
      rows.resize(static_cast<Index>(last - first), keys.d());
      for (std::size_t r = first; r < last; ++r) {
        keys.write(open[r], rows.row(static_cast<Index>(r - first)));
      }
      inner_products(rows, columns_t, cosines);
      for (std::size_t r = first; r < last; ++r) {
        const double* row = cosines.row(static_cast<Index>(r - first));
        Index c = end - begin - 1;
        while (c >= 0 && !(row[c] > threshold && begin + c != open[r])) {
          --c;
        }
        if (c >= 0) {
          lost[begin + c] += row[c];
        } else {
          open[still++] = open[r];
        }
      }
    }
    open.resize(still);
  }
  return lost;
}

// [cache]. A column's sum is its inner product with the sum of all directions.
std::vector<double> redundancy(const KvHead& head, std::span<const Index> cache, double threshold) {
  const Directions keys(head, cache);
  std::vector<double> out = lost_to_newer(keys, threshold);
  std::vector<double> sum(keys.d(), 0.0);
  for (Index i = 0; i < keys.count(); ++i) {
    for (Index t = 0; t < keys.d(); ++t) {
      sum[t] += keys.at(i, t);
    }
  }
  for (Index i = 0; i < keys.count(); ++i) {
    double along = 0.0;
    double self = 0.0;
    for (Index t = 0; t < keys.d(); ++t) {
      const double x = keys.at(i, t);
      along = std::fma(x, sum[t], along);
      self = std::fma(x, x, self);
    }
    out[i] = (along - self - out[i]) / static_cast<double>(keys.count());
  }
  softmax(out);
  return out;
}

std::vector<double> pooled(std::span<const double> x, Index half) {
  const auto count = static_cast<Index>(x.size());
  std::vector<double> out(x.size());
  for (Index i = 0; i < count; ++i) {
    const auto first = x.begin() + std::max<Index>(0, i - half);
    const auto last = x.begin() + std::min(count, i + half + 1);
    out[i] = *std::max_element(first, last);
  }
  return out;
}

}  // namespace

std::vector<double> rkv_scores(const KvHead& head, std::span<const Index> cache,
                               std::span<const Index> own, Range queries, const RkvRules& rules,
                               const ScoreBook* book) {
  const auto kept = [&](std::size_t key, const auto& compute) {
    if (book == nullptr) {
      return compute();
    }
    const std::string base = rkv_book_keys(queries.size(), rules)[key];
    return book
        ->cached(fmt::format("{} {}", base, cache.size()),
                 [&] { return ScoreBook::Scores{compute()}; })
        .front();
  };
  const auto before = [&](std::span<const Index> tokens) {
    const auto end = std::lower_bound(tokens.begin(), tokens.end(), queries.begin);
    return tokens.first(static_cast<std::size_t>(end - tokens.begin()));
  };
  std::vector<double> out;
  out.reserve(own.size());
  const std::span<const Index> seen = before(cache);
  const std::span<const Index> free = before(own);
  // fn(i, place): own token i and its index in the cache.
  const auto each_free = [&](auto&& fn) {
    auto place = cache.begin();
    for (std::size_t i = 0; i < free.size(); ++i) {
      place = std::lower_bound(place, cache.end(), free[i]);
      fn(i, static_cast<std::size_t>(place - cache.begin()));
    }
  };
  if (!free.empty()) {
    {
      const std::vector<double> weights =
          kept(0, [&] { return importance(head, seen, queries, rules.largest_logit); });
      each_free([&](std::size_t, std::size_t place) { out.push_back(weights[place]); });
    }
    out = pooled(out, rules.kernel / 2);
    out.reserve(own.size());
    const std::vector<double> redundant =
        kept(1, [&] { return redundancy(head, cache, rules.threshold); });
    each_free([&](std::size_t i, std::size_t place) {
      out[i] = rules.lambda * out[i] - (1.0 - rules.lambda) * redundant[place];
    });
  }
  while (out.size() < own.size()) {
    out.push_back(kAboveAllScores + static_cast<double>(out.size()));
  }
  return out;
}

std::vector<std::string> rkv_book_keys(Index window, const RkvRules& rules) {
  return {fmt::format("rkv importance {} {}", window, rules.largest_logit),
          fmt::format("rkv redundancy {}", rules.threshold)};
}

}  // namespace kvbench
