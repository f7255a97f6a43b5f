#include "attention/softmax_balance.hpp"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

#include "core/shared_work.hpp"

namespace kvbench {
namespace {

constexpr double kInfiniteLog = std::numeric_limits<double>::infinity();
constexpr double kCoinMargin = 0.01;

// log of a diagonal entry's factor beside its exponential.
double log_value(const WalkOptions& options, double weight, double square) {
  if (options.plain_bias) {
    const double x = weight * weight * square + options.value_bias;
    return x > 0.0 ? std::log(x) : -kInfiniteLog;
  }
  const double x = square + options.value_bias;
  return x > 0.0 ? std::log(x) + 2.0 * std::log(weight) : -kInfiniteLog;
}

}  // namespace

WalkCounts& WalkCounts::operator+=(const WalkCounts& o) {
  steps += o.steps;
  failures += o.failures;
  saturated += o.saturated;
  coin += o.coin;
  return *this;
}

double log_diagonal(const WalkOptions& options, double key_square, double value_square,
                    double weight) {
  return options.scale * key_square + log_value(options, weight, value_square);
}

double theory_constant(const WalkOptions& options, Index nb) {
  return 30.0 * std::log(static_cast<double>(nb) / options.failure);
}

void count_step(WalkStep step, double p, WalkCounts& counts) {
  ++counts.steps;
  // Under the theory's step, |y| > c R^2 exactly where P is outside [0, 1].
  counts.failures += step == WalkStep::theory && (p < 0.0 || p > 1.0) ? 1 : 0;
  counts.saturated += p <= 0.0 || p >= 1.0 ? 1 : 0;
  counts.coin += std::abs(clamp_probability(p) - 0.5) < kCoinMargin ? 1 : 0;
}

template <class T>
WalkCounts softmax_balance(BasicMatrix<T>& keys, const BasicMatrix<T>& values,
                           std::span<const double> weights, const WalkOptions& options,
                           std::span<const double> uniforms, std::span<std::int8_t> signs,
                           std::span<double> probability, WalkNumbers<T>& scratch) {
  const Index nb = keys.rows();
  if (options.center) {
    center_rows(keys, options.padded);
  }
  transpose(keys, scratch.transposed);
  inner_products(keys, scratch.transposed, scratch.exponent, /*upper=*/true);
  transpose(values, scratch.transposed);
  inner_products(values, scratch.transposed, scratch.kernel, /*upper=*/true);

  // log R^2 over the block and log G_jj per token.
  const auto count = static_cast<std::size_t>(nb);
  scratch.norm_exponent.resize(count);
  double log_r2 = -kInfiniteLog;
  for (Index j = 0; j < nb; ++j) {
    const auto at = static_cast<std::size_t>(j);
    scratch.norm_exponent[at] =
        log_diagonal(options, static_cast<double>(scratch.exponent.row(j)[j]),
                     static_cast<double>(scratch.kernel.row(j)[j]), weights[at]);
    log_r2 = std::max(log_r2, scratch.norm_exponent[at]);
  }

  // Column j's shift: the largest exponent against the tokens before it.
  const auto scale = static_cast<T>(options.scale);
  const auto bias = static_cast<T>(options.value_bias);
  const bool plain = options.plain_bias;
  scratch.shift.assign(count, -std::numeric_limits<T>::infinity());
  T* shift = scratch.shift.data();
  scratch.weights.assign(weights.begin(), weights.end());
  const T* column_weight = scratch.weights.data();
  for (Index i = 0; i < nb; ++i) {
    T* e = scratch.exponent.row(i);
#pragma omp simd
    for (Index j = i + 1; j < nb; ++j) {
      e[j] *= scale;
      shift[j] = e[j] > shift[j] ? e[j] : shift[j];
    }
  }

  // Each drawn sign is added to the sums of all later tokens, so every sum runs over i ascending,
  // whatever the vector width.
  const double theory_c = theory_constant(options, nb);
  scratch.sums.assign(count, 0.0);
  double* sums = scratch.sums.data();
  WalkCounts counts;
  for (Index i = 0; i < nb; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double p = probability_of_plus(options, sums[i], static_cast<double>(shift[i]), log_r2,
                                         scratch.norm_exponent[at], theory_c, i == 0);
    count_step(options.step, p, counts);
    if (!probability.empty()) {
      probability[at] = clamp_probability(p);
    }
    const std::int8_t sign = sign_of(p, uniforms[at]);
    signs[at] = sign;

    const T* e = scratch.exponent.row(i);
    const T* inner = scratch.kernel.row(i);
    const double signed_weight = static_cast<double>(sign) * row_weight(options, weights[at]);
    const T own_weight = column_weight[i];
#pragma omp simd
    for (Index j = i + 1; j < nb; ++j) {
      const T value = value_factor(plain, inner[j], bias, own_weight, column_weight[j]);
      const T factor = exp_shared(e[j] - shift[j]) * value;
      sums[j] = std::fma(static_cast<double>(factor), signed_weight, sums[j]);
    }
  }
  return counts;
}

template WalkCounts softmax_balance(MatrixD&, const MatrixD&, std::span<const double>,
                                    const WalkOptions&, std::span<const double>,
                                    std::span<std::int8_t>, std::span<double>,
                                    WalkNumbers<double>&);
template WalkCounts softmax_balance(Matrix&, const Matrix&, std::span<const double>,
                                    const WalkOptions&, std::span<const double>,
                                    std::span<std::int8_t>, std::span<double>, WalkNumbers<float>&);

namespace {

template <class T>
WalkCounts walk_blocks(const KvHead& head, const BalanceBlocks& blocks,
                       std::span<std::int8_t> signs, std::span<double> probability) {
  const auto block = static_cast<std::size_t>(blocks.block);
  const auto parts = static_cast<Index>((blocks.tokens.size() + block - 1) / block);
  const auto walk = [&](Index part, WalkNumbers<T>& numbers) {
    const std::size_t b = static_cast<std::size_t>(part) * block;
    const std::size_t count = std::min(block, blocks.tokens.size() - b);
    const std::span<const Index> tokens = blocks.tokens.subspan(b, count);
    gather_rows(head.k, tokens, numbers.keys);
    if (blocks.ones) {
      numbers.values.resize(static_cast<Index>(count), 1);
      std::fill_n(numbers.values.data(), count, T{1});
    } else {
      gather_rows(head.v, tokens, numbers.values);
    }
    return softmax_balance(
        numbers.keys, numbers.values, blocks.weights.subspan(b, count), blocks.options,
        blocks.uniforms.subspan(b, count), signs.subspan(b, count),
        probability.empty() ? probability : probability.subspan(b, count), numbers);
  };
  WalkCounts counts;
  std::mutex mutex;
  ScratchPool<WalkNumbers<T>> scratch;
  share_work(parts, [&](Index part) {
    auto mine = scratch.take();
    const WalkCounts own = walk(part, *mine);
    scratch.give(std::move(mine));
    const std::lock_guard lock(mutex);
    counts += own;
  });
  return counts;
}

}  // namespace

WalkCounts balance_blocks(const KvHead& head, const BalanceBlocks& blocks,
                          std::span<std::int8_t> signs, std::span<double> probability) {
  return with_element(head.precision, [&](auto element) {
    return walk_blocks<decltype(element)>(head, blocks, signs, probability);
  });
}

}  // namespace kvbench
