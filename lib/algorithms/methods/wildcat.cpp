// wildcat: a weighted coreset of the keys by randomly pivoted Cholesky; kept values are
// combinations of all values. Reads no query.
// [1] Schroeder, Mackey, "WildCat: Near-Linear Attention in Theory and Practice", 2026,
//     arXiv:2602.10056.
// [2] Its authors' code, microsoft/wildcat: wildcat/compresskv.py and rp_nystrom.py at 1166446,
//     examples/kvcache/presses/compresskv_press.py.
// [3] Chen, Epperly, Tropp, Webber, "Randomly pivoted Cholesky", 2022, arXiv:2207.06503.
// Each of floor(B / per_bin) bins of tokens gets its part of B. In a bin of n tokens, x is sqrt(s)
// / tau times the key less the mean of all keys, the kernel exp(<x, x'>). Tokens S are drawn one by
// one with probability proportional to the residual diagonal. With the Nystrom weights W = H_SS^-1
// H_S.
//   z = sum_S exp(s<k,q>) (W V)_S / sum_S exp(s<k,q>) (W 1)_S.
// tau=auto is [1]'s closed form, with R the largest norm of the bin's centred keys, also for
// queries: tau^2 = b / (2 W0(b / (2 rho))), b = log n / (s R^2) + 2, rho = sqrt(1 + exp(W0(2/e^2) +
// 2)), W0 Lambert's function. Computed in float64 with exp(-|x-x'|^2 / 2), the same up to a factor
// per token. (W V)_S is stored divided by max(1, (W 1)_S), its weight in the numerator, to keep the
// values' size.
//
// In: K [m, d], V [m, dv]. Out: at most B entries, a float32 weight each. Time O(m d + sum over
// bins of n r (r + d + dv)), memory O(n (r + d)) of the largest bin, r what it keeps.
#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "algorithms/shared/size.hpp"
#include "attention/inner_products.hpp"
#include "core/float16.hpp"
#include "core/math.hpp"

namespace kvbench::method_wildcat {
namespace {

constexpr double kSpanned = 1e-10;             // largest residual of a spanned token
constexpr double kTwoRho = 6.383202050647408;  // 2 sqrt(1 + exp(W0(2/e^2) + 2))
constexpr Index kWeightBytes = 4;

// Lambert's W0(y), y > 0: w + log w = log y by Newton's method, monotone from these starts.
double lambert_w0(double y) {
  const double log_y = std::log(y);
  double w = log_y > 1.0 ? log_y - std::log(log_y) : std::exp(log_y - 1.0);
  for (int round = 0; round < 40; ++round) {
    w *= (1.0 + log_y - std::log(w)) / (1.0 + w);
  }
  return w;
}

// tau^2 for a bin of `count` keys of norms up to `radius`. Any value serves equal keys (radius 0).
double temperature(const Params& params, double scale, Index count, double radius) {
  if (!params.is_auto("tau")) {
    return params.real("tau") * params.real("tau");
  }
  const double b = std::log(static_cast<double>(count)) / (scale * radius * radius) + 2.0;
  return std::isfinite(b) ? b / (2.0 * lambert_w0(b / kTwoRho)) : 1.0;
}

// One bin: its keys as x [n, d], and columns of the kernel's Cholesky factor.
class Bin {
 public:
  Bin(MatrixD x, Index rank)
      : x_(std::move(x)), factor_(rank, x_.rows()), residual_(x_.rows(), 1.0) {
    for (Index i = 0; i < x_.rows(); ++i) {
      double square = 0.0;
      for (Index t = 0; t < x_.cols(); ++t) {
        square = std::fma(x_.row(i)[t], x_.row(i)[t], square);
      }
      half_squares_.push_back(0.5 * square);
    }
  }

  // Draws until `rank` tokens are picked or none remains; pick i uses draw first + i.
  void pick(const RngStream& draws, Index first) {
    while (static_cast<Index>(picks_.size()) < factor_.rows()) {
      const Index next = drawn(draws.uniform(first + picks_.size()));
      if (next < 0) {
        break;
      }
      add(next);
    }
  }

  const std::vector<Index>& picks() const { return picks_; }

  // (W 1, W V) [picks, 1 + dv] for the bin's `tokens`. Overwrites the factor by the Gaussian
  // kernel's W.
  MatrixD combined(MatrixView v, std::span<const Index> tokens) {
    solve();
    const auto count = static_cast<Index>(picks_.size());
    MatrixD out(count, v.cols + 1);
    for (Index r = 0; r < count; ++r) {
      double* to = out.row(r);
      for (std::size_t l = 0; l < tokens.size(); ++l) {
        const double gaussian = factor_.row(r)[l];
        const double w = std::clamp<double>(
            scaled_exp(gaussian, half_squares_[l] - half_squares_[picks_[r]]), -FLT_MAX, FLT_MAX);
        const float* value = v.row(tokens[l]);
        to[0] += w;
        for (Index c = 0; c < v.cols; ++c) {
          to[1 + c] = std::fma(w, static_cast<double>(value[c]), to[1 + c]);
        }
      }
    }
    return out;
  }

 private:
  // The token at fraction `uniform` of the residual diagonal of exp(<x, x'>); -1: none remains.
  Index drawn(double uniform) const {
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    std::vector<double> shares(residual_.size());
    double top = kNone;
    for (std::size_t i = 0; i < residual_.size(); ++i) {
      shares[i] = residual_[i] > kSpanned ? std::log(residual_[i]) + 2.0 * half_squares_[i] : kNone;
      top = std::max(top, shares[i]);
    }
    if (top == kNone) {
      return -1;
    }
    double sum = 0.0;
    for (double& x : shares) {
      sum += x == kNone ? 0.0 : exp_shared(x - top);
      x = sum;
    }
    return std::ranges::upper_bound(shares, uniform * sum) - shares.begin();
  }

  // F' := L'^-1 F', where L, lower triangular, are the factor's rows F at the picks.
  void solve() {
    const auto count = static_cast<Index>(picks_.size());
    for (Index r = count - 1; r >= 0; --r) {
      double* row = factor_.row(r);
      std::vector<double> lower;
      for (const Index p : picks_) {
        lower.push_back(row[p]);
      }
      for (Index j = r + 1; j < count; ++j) {
        subtract(lower[j], factor_.row(j), row);
      }
      for (Index l = 0; l < x_.rows(); ++l) {
        row[l] /= lower[r];
      }
    }
  }

  // to -= f from, over the bin's tokens.
  void subtract(double f, const double* from, double* to) const {
#pragma omp simd
    for (Index l = 0; l < x_.rows(); ++l) {
      to[l] = std::fma(-f, from[l], to[l]);
    }
  }

  double squared_distance(Index i, Index j) const {
    double sum = 0.0;
    for (Index t = 0; t < x_.cols(); ++t) {
      const double difference = x_.row(i)[t] - x_.row(j)[t];
      sum = std::fma(difference, difference, sum);
    }
    return sum;
  }

  // Adds the token's column of the factor.
  void add(Index token) {
    const auto step = static_cast<Index>(picks_.size());
    double* column = factor_.row(step);
    for (Index l = 0; l < x_.rows(); ++l) {
      column[l] = exp_shared(-0.5 * squared_distance(token, l));
    }
    for (Index j = 0; j < step; ++j) {
      subtract(factor_.row(j)[token], factor_.row(j), column);
    }
    const double root = std::sqrt(residual_[token]);
    for (Index l = 0; l < x_.rows(); ++l) {
      column[l] /= root;
      residual_[l] -= column[l] * column[l];
    }
    for (const Index p : picks_) {
      column[p] = 0.0;  // 0 but for rounding
    }
    column[token] = root;
    residual_[token] = 0.0;
    picks_.push_back(token);
  }

  MatrixD x_;
  MatrixD factor_;                // [rank, n]: row r is the column of pick r
  std::vector<double> residual_;  // [n]: diagonal, at first 1
  std::vector<double> half_squares_;
  std::vector<Index> picks_;
};

// Keys of `tokens` less `mean`, times sqrt(s) / tau.
MatrixD scaled_keys(const Task& task, const Params& params, std::span<const Index> tokens,
                    std::span<const double> mean) {
  MatrixD x;
  gather_rows(task.head.k, tokens, x);
  double largest = 0.0;
  for (Index i = 0; i < x.rows(); ++i) {
    double square = 0.0;
    for (std::size_t t = 0; t < mean.size(); ++t) {
      x.row(i)[t] -= mean[t];
      square = std::fma(x.row(i)[t], x.row(i)[t], square);
    }
    largest = std::max(largest, square);
  }
  const double scale = task.head.scale;
  const double factor = std::sqrt(scale / temperature(params, scale, x.rows(), std::sqrt(largest)));
  for (Index i = 0; i < x.rows() * x.cols(); ++i) {
    x.data()[i] *= factor;
  }
  return x;
}

Index bin_count(const Params& params, Index kept) {
  const Index per_bin = params.integer("per_bin");
  return per_bin == 0 ? 1 : std::max<Index>(1, kept / per_bin);
}

struct CoresetToken {
  Index token;
  std::vector<double> combined;  // [1 + dv]
};

std::vector<CoresetToken> coreset(const Task& task, const Params& params, Index kept) {
  const Index m = task.count();
  const Index bins = bin_count(params, kept);
  const std::vector<double> mean = mean_row(task.head.k, task.tokens);
  const RngStream draws = task.rng.stream("pivots");
  std::vector<CoresetToken> out;
  for (Index b = 0; b < bins; ++b) {
    const Index begin = m * b / bins;
    const auto size = static_cast<std::size_t>(m * (b + 1) / bins - begin);
    const auto tokens = task.tokens.subspan(begin, size);
    const Index first = kept * b / bins;
    Bin bin(scaled_keys(task, params, tokens, mean),
            std::min(kept * (b + 1) / bins - first, static_cast<Index>(size)));
    bin.pick(draws, first);
    const MatrixD combined = bin.combined(task.head.v, tokens);
    for (Index r = 0; r < combined.rows(); ++r) {
      out.push_back({tokens[bin.picks()[r]], {combined.row(r), combined.row(r) + combined.cols()}});
    }
  }
  std::ranges::sort(out, {}, &CoresetToken::token);
  return out;
}

Compressed compress(const Task& task, const Params& params) {
  const KvHead& head = task.head;
  const Index kept = tokens_to_keep(task, params, head.pair_bytes() + kWeightBytes);
  if (kept == task.count()) {
    return hold(task.tokens);
  }
  Compressed out;
  if (kept == 0) {
    return out;
  }
  const std::vector<CoresetToken> entries = coreset(task, params, kept);
  const auto count = static_cast<Index>(entries.size());
  Denominator& denominator = out.denominator.emplace();
  out.made.k = Matrix(count, head.d());
  out.made.v = Matrix(count, head.dv());
  double sum = 0.0;
  Index negative = 0;
  for (Index i = 0; i < count; ++i) {
    const CoresetToken& e = entries[static_cast<std::size_t>(i)];
    const double w = e.combined[0];
    const double unit = std::clamp<double>(w, 1.0, FLT_MAX);
    std::copy_n(head.k.row(e.token), head.d(), out.made.k.row(i));
    for (Index c = 0; c < head.dv(); ++c) {
      out.made.v.row(i)[c] = stored(head.dtype, e.combined[static_cast<std::size_t>(c + 1)] / unit);
    }
    out.made.weights.push_back(static_cast<float>(unit));
    denominator.made.weights.push_back(static_cast<float>(std::clamp<double>(w, 0.0, FLT_MAX)));
    out.made.positions.push_back(e.token);
    sum += w;
    negative += w < 0.0 ? 1 : 0;
  }
  denominator.made.k = out.made.k;
  out.payload_bytes = count * head.pair_bytes();  // keys of both sets are stored once
  out.aux_bytes = count * kWeightBytes;
  out.diag = {{"pivots", fmt::format("{}", count)},
              {"weight_sum", fmt::format("{:.6g}", sum)},
              {"negative", fmt::format("{}", negative)}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "wildcat";
  info.family = Family::merging;
  info.copies = 2;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index kept) {
    const Index bins = bin_count(p, kept);
    return 8 * (l.n / bins + 1) * (kept / bins + 1);
  };
  info.summary = "keys by randomly pivoted Cholesky, Nystrom weights and values of all tokens";
  info.source = "Schroeder and Mackey, WildCat, 2026, arXiv:2602.10056; microsoft/wildcat 1166446";
  info.departures =
      "from the authors' public code, not the paper's text; keys are centred over the middle "
      "(code: over all tokens); negative weights are 0 in the denominator (code: kept); outputs "
      "are not clipped to the values' range; bins cover the whole middle (code: a remainder stays "
      "exact); tokens with a residual below 1e-10 are not drawn; float64";
  info.params = size_params(
      {integer_param("per_bin", "12", 0, 1e9, "tokens",
                     "tokens kept per bin; bins are compressed separately; larger is more exact "
                     "and slower; 0: one bin"),
       real_param("tau", "auto", 1e-3, 1e6, "",
                  "temperature of the kernel exp(s<k,k'>/tau^2); larger makes keys more alike and "
                  "weights larger; auto: the paper's closed form, per bin")});
  info.grid = {"per_bin=12,48,192"};
  info.not_quantizable = "it has a denominator of its own";
  info.facts = [](const Params&) { return JobFacts{.random = true}; };
  return {info, compress};
}

}  // namespace kvbench::method_wildcat
