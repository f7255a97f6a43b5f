#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gpu/operations.cuh"
#include "gpu/products.cuh"

namespace kvbench::gpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Index kShortest = 64;  // tokens per block
constexpr Index kLongest = 4096;
constexpr int kMeanThreads = 128;
constexpr int kColumns = 32;  // per thread block of walk_factors
constexpr int kLines = 8;
constexpr int kOwn = 4;  // tokens per thread of a walk

// Blocks of tokens walked together; the last one may be shorter.
struct Layout {
  Index tokens;
  Index block;

  KVB_HD Index blocks() const { return ceil_div(tokens, block); }
  KVB_HD Index length(Index b) const {
    const Index rest = tokens - b * block;
    return rest < block ? rest : block;
  }
};

// mean[b, t]: channel t over block b, in the order of its tokens, filled up with zeros to `padded`
// tokens. A thread per channel.
__global__ void mean_keys(Layout layout, const float* rows, const Index* tokens, Index d,
                          Index padded, double* mean) {
  const Index at = Index{blockIdx.x} * kMeanThreads + threadIdx.x;
  const Index b = at / d;
  if (b < layout.blocks()) {
    const Index nb = layout.length(b);
    double sum = 0.0;
    for (Index i = 0; i < nb; ++i) {
      sum += static_cast<double>(rows[tokens[b * layout.block + i] * d + at % d]);
    }
    mean[at] = sum / static_cast<double>(nb < padded ? padded : nb);
  }
}

// out[b, i, j] = factor * <x_i, x_j> for i < j of block b, x the rows minus their mean (null: 0),
// and squares[token] = <x_i, x_i>. One thread block per tile; tiles below the diagonal are skipped.
template <class T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T>)
    gram(Layout layout, const float* rows, const Index* tokens, Index d, const double* mean,
         T factor, T* squares, T* out) {
  const Index across = ceil_div(layout.block, kTileColumns<T>);
  const Index tiles = ceil_div(layout.block, kTile) * across;
  const Index b = Index{blockIdx.x} / tiles;
  const Index top = Index{blockIdx.x} % tiles / across * kTile;
  const Index side = Index{blockIdx.x} % across * kTileColumns<T>;
  const Index nb = layout.length(b);
  if (top >= side + kTileColumns<T> || side >= nb) {
    return;
  }
  const Index base = b * layout.block;
  const auto row = [&](Index i) { return i < nb ? rows + tokens[base + i] * d : nullptr; };
  const auto centred = [mean = mean == nullptr ? mean : mean + b * d](float x, int t) {
    return static_cast<T>(mean == nullptr ? x : static_cast<double>(x) - mean[t]);
  };
  OwnSums<T> acc;
  tile_products<T>(d,
                   along_sum<T, LeftSide>(
                       d, [&](int i) { return row(top + i); }, centred),
                   along_sum<T, RightSide>(
                       d, [&](int j) { return row(side + j); }, centred),
                   acc);
  KVB_UNROLL
  for (int r = 0; r < kTileOwn; ++r) {
    KVB_UNROLL
    for (int c = 0; c < kOwnColumns<T>; ++c) {
      const Index i = top + tile_row(r);
      const Index j = side + tile_column(c);
      if (j < nb && i < j) {
        out[(base + i) * layout.block + j] = acc[r][c] * factor;
      } else if (j < nb && i == j) {
        squares[base + i] = acc[r][c];
      }
    }
  }
}

// shift[j] = max over i < j of the exponents e_ij, which become exp(e_ij - shift_j) times their
// value_factor. `inner` may be null: 1. A thread block has 32 columns, a warp every eighth row.
template <class T>
__global__ void __launch_bounds__(kColumns* kLines)
    walk_factors(Layout layout, T* exponents, const T* inner, const double* weights,
                 bool plain_bias, T bias, T* shift) {
  __shared__ T max_of[kLines][kColumns];
  const Index groups = ceil_div(layout.block, kColumns);
  const Index b = Index{blockIdx.x} / groups;
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int line = static_cast<int>(threadIdx.x) / kColumns;
  const Index j = Index{blockIdx.x} % groups * kColumns + lane;
  const Index base = b * layout.block;
  const Index end = j < layout.length(b) ? j : 0;  // rows of column j
  const Index column = base * layout.block + j;
  T max = -std::numeric_limits<T>::infinity();
  for (Index i = line; i < end; i += kLines) {
    const T e = exponents[column + i * layout.block];
    max = max < e ? e : max;
  }
  max_of[line][lane] = max;
  __syncthreads();
  for (const auto& of : max_of) {
    max = max < of[lane] ? of[lane] : max;
  }
  if (line == 0 && j < layout.length(b)) {
    shift[base + j] = max;
  }
  const auto own = static_cast<T>(j < layout.length(b) ? weights[base + j] : 0.0);
  for (Index i = line; i < end; i += kLines) {
    const Index at = column + i * layout.block;
    const T value = value_factor(plain_bias, inner == nullptr ? T{1} : inner[at], bias,
                                 static_cast<T>(weights[base + i]), own);
    exponents[at] = exp_shared(exponents[at] - max) * value;
  }
}

// Per-block constants of a walk.
struct Constants {
  double log_r2;
  double theory_c;
};

template <class T>
struct Walk {
  Layout layout;
  WalkOptions options;
  const T* factors;            // [blocks, block, block]
  const T* shift;              // [tokens], as are the next three
  const double* log_own;       // log G_jj
  const double* weights;       //
  const double* uniforms;      //
  const Constants* constants;  // [blocks]
  double* plus;                // [tokens] out: P(+1), unclamped
};

// Right-looking walks, a thread block per block of tokens. The thread of token i draws its sign
// from the sum in its registers, then all threads add row i to their sums; sums[k] is that of the
// thread's k-th token from the current one on. Two slots for the signed weight need one barrier per
// token.
template <int kThreads, class T>
__global__ void __launch_bounds__(kThreads) walk(Walk<T> w) {
  __shared__ double signed_weight[2];
  const int thread = static_cast<int>(threadIdx.x);
  const Index b = blockIdx.x;
  const Index base = b * w.layout.block;
  const Index nb = w.layout.length(b);
  const Constants constants = w.constants[b];
  double sums[kOwn] = {};
  for (Index begin = 0; begin < nb; begin += kThreads) {
    const Index own = begin + thread;
    const Index read = base + (own < nb ? own : 0);
    const auto shift = static_cast<double>(w.shift[read]);
    const double log_own = w.log_own[read];
    const double weight = w.weights[read];
    const double uniform = w.uniforms[read];
    for (Index i = begin; i < nb && i < begin + kThreads; ++i) {
      // Loaded before the sign is known.
      const T* row = w.factors + (base + i) * w.layout.block;
      T factor[kOwn];
      for (int k = 0; k < kOwn; ++k) {
        const Index j = own + k * kThreads;
        factor[k] = i < j && j < nb ? row[j] : T{0};
      }
      if (own == i) {
        const double p = probability_of_plus(w.options, sums[0], shift, constants.log_r2, log_own,
                                             constants.theory_c, i == 0);
        w.plus[base + i] = p;
        signed_weight[i % 2] =
            static_cast<double>(sign_of(p, uniform)) * row_weight(w.options, weight);
      }
      __syncthreads();
      for (int k = 0; k < kOwn; ++k) {
        sums[k] = std::fma(static_cast<double>(factor[k]), signed_weight[i % 2], sums[k]);
      }
    }
    for (int k = 0; k + 1 < kOwn; ++k) {
      sums[k] = sums[k + 1];
    }
  }
}

// log G_jj per token and log R^2 per block. On the host, as a device's logarithm may differ in the
// last bit.
template <class T>
void find_logarithms(const BalanceBlocks& blocks, std::size_t begin, const Layout& layout,
                     std::span<const T> squares, std::span<const T> value_squares,
                     std::vector<double>& log_own, std::vector<Constants>& constants) {
  log_own.clear();
  constants.clear();
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (i % static_cast<std::size_t>(layout.block) == 0) {
      const auto b = static_cast<Index>(constants.size());
      constants.push_back({-kInfinity, theory_constant(blocks.options, layout.length(b))});
    }
    log_own.push_back(log_diagonal(blocks.options, static_cast<double>(squares[i]),
                                   static_cast<double>(value_squares[i]),
                                   blocks.weights[begin + i]));
    constants.back().log_r2 = std::max(constants.back().log_r2, log_own.back());
  }
}

template <class T>
WalkCounts balance_blocks_in(const DeviceHead& head, const BalanceBlocks& blocks, const Layout& all,
                             std::span<std::int8_t> signs, std::span<double> probability) {
  const Device& device = head.device;
  const WalkOptions& options = blocks.options;
  const Index d = head.host->d();
  const Index pairs = all.block * all.block;
  const auto elements = static_cast<Index>(device.scratch_bytes() / sizeof(T));
  const Index at_once = std::clamp<Index>(elements / pairs, 1, all.blocks());
  const Index max_tokens = std::min(at_once * all.block, all.tokens);
  Array<Index> positions(device, max_tokens);
  const Array<T> exponents(device, at_once * pairs);
  const Array<T> inner(device, blocks.ones ? 0 : at_once * pairs);
  const Array<double> mean(device, options.center ? at_once * d : 0);
  const Array<T> squares(device, max_tokens), value_squares(device, max_tokens);
  const Array<T> shift(device, max_tokens);
  const Array<double> plus(device, max_tokens);
  Array<double> weights(device, max_tokens), uniforms(device, max_tokens);
  Array<double> log_own(device, max_tokens);
  Array<Constants> constants(device, at_once);

  WalkCounts counts;
  std::vector<T> host_squares;
  std::vector<double> host_log_own, host_plus;
  std::vector<Constants> host_constants;
  for (Index first = 0; first < all.blocks(); first += at_once) {
    const auto begin = static_cast<std::size_t>(first * all.block);
    const std::size_t count =
        std::min(static_cast<std::size_t>(max_tokens), blocks.tokens.size() - begin);
    const Layout layout{static_cast<Index>(count), all.block};
    const Index grams =
        layout.blocks() * ceil_div(all.block, kTile) * ceil_div(all.block, kTileColumns<T>);
    positions.put(blocks.tokens.subspan(begin, count));
    weights.put(blocks.weights.subspan(begin, count));
    uniforms.put(blocks.uniforms.subspan(begin, count));
    if (options.center) {
      device.launch(mean_keys, ceil_div(layout.blocks() * d, kMeanThreads), kMeanThreads, layout,
                    head.k.data(), positions.data(), d, options.padded, mean.data());
    }
    device.launch(gram<T>, grams, kTileThreads, layout, head.k.data(), positions.data(), d,
                  mean.data(), static_cast<T>(options.scale), squares.data(), exponents.data());
    if (!blocks.ones) {
      device.launch(gram<T>, grams, kTileThreads, layout, head.v.data(), positions.data(),
                    head.host->dv(), nullptr, T{1}, value_squares.data(), inner.data());
    }
    device.launch(walk_factors<T>, layout.blocks() * ceil_div(all.block, kColumns),
                  kColumns * kLines, layout, exponents.data(), inner.data(), weights.data(),
                  options.plain_bias, static_cast<T>(options.value_bias), shift.data());
    host_squares.assign(2 * count, T{1});
    const std::span<T> key_part = std::span(host_squares).first(count);
    const std::span<T> value_part = std::span(host_squares).last(count);
    squares.get(key_part);
    if (!blocks.ones) {
      value_squares.get(value_part);
    }
    find_logarithms<T>(blocks, begin, layout, key_part, value_part, host_log_own, host_constants);
    log_own.put(host_log_own);
    constants.put(host_constants);
    const Walk<T> w{layout,         options,         exponents.data(), shift.data(), log_own.data(),
                    weights.data(), uniforms.data(), constants.data(), plus.data()};
    const bool is_short = all.block <= 256 * kOwn;
    device.launch(is_short ? walk<256, T> : walk<1024, T>, layout.blocks(), is_short ? 256 : 1024,
                  w);
    host_plus.resize(count);
    plus.get(host_plus);
    for (std::size_t i = 0; i < count; ++i) {
      count_step(options.step, host_plus[i], counts);
      signs[begin + i] = sign_of(host_plus[i], blocks.uniforms[begin + i]);
      if (!probability.empty()) {
        probability[begin + i] = clamp_probability(host_plus[i]);
      }
    }
  }
  return counts;
}

}  // namespace

WalkCounts balance_blocks(const DeviceHead& head, const BalanceBlocks& blocks,
                          std::span<std::int8_t> signs, std::span<double> probability) {
  const auto tokens = static_cast<Index>(blocks.tokens.size());
  const Layout all{tokens, std::min(blocks.block, tokens)};
  if (all.block < kShortest || all.block > kLongest) {
    return kvbench::balance_blocks(*head.host, blocks, signs, probability);
  }
  return with_element(head.host->precision, [&](auto element) {
    return balance_blocks_in<decltype(element)>(head, blocks, all, signs, probability);
  });
}

}  // namespace kvbench::gpu
