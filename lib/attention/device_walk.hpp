// SoftmaxBalance's walks on a machine: the launches around walk_kernels.hpp, and the logarithms,
// which are the host's own while the machine multiplies.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/device_tensors.hpp"
#include "attention/softmax_balance.hpp"
#include "attention/walk_kernels.hpp"
#include "core/error.hpp"
#include "core/machine.hpp"

namespace kvbench {

/// Gram matrices in float64, to the bits of the CPU.
struct ExactGram {
  /// out[b, i, j] = factor <x_i, x_j> for i < j, from `channels` [blocks, d, padded].
  template <class M>
  void operator()(M& machine, const WalkLayout& layout, const double* channels, Index d,
                  double factor, double* out) {
    const Gram kernel{layout, channels, d, factor, out};
    machine.launch(kernel, kernel.launch_blocks());
  }
};

/// The walks of one call, some token blocks at a time. `key_gram` and `value_gram` make their
/// Gram matrices.
template <class M, class MakeGram = ExactGram>
class DeviceWalk {
 public:
  DeviceWalk(M& machine, const HeadTensors<M>& head, const BalanceBlocks& blocks,
             MakeGram key_gram = {}, MakeGram value_gram = {})
      : machine_(machine),
        head_(head),
        blocks_(blocks),
        key_gram_(std::move(key_gram)),
        value_gram_(std::move(value_gram)),
        d_(head.head->d()),
        dv_(head.head->dv()) {
    const auto m = static_cast<Index>(blocks.tokens.size());
    all_ = {m, std::clamp<Index>(blocks.block, 1, std::max<Index>(m, 1))};
    static_assert(Walk<1024>::kLongest == kLongestDeviceWalk);
    if (all_.block > kLongestDeviceWalk) {
      throw InputError("balance_blocks: a block on a device has at most " +
                       std::to_string(kLongestDeviceWalk) + " tokens, got " +
                       std::to_string(all_.block));
    }
    const Index widest = std::max(
        {all_.block * all_.block, all_.padded() * d_, blocks.ones ? 0 : all_.padded() * dv_});
    const auto room = static_cast<Index>(machine.scratch_bytes() / sizeof(double));
    at_once_ = std::clamp<Index>(room / widest, 1, std::max<Index>(all_.blocks(), 1));
  }

  WalkCounts run(std::span<std::int8_t> signs, std::span<double> probability) {
    WalkCounts counts;
    if (all_.tokens == 0) {
      return counts;
    }
    allocate();
    for (Index b = 0; b < all_.blocks(); b += at_once_) {
      const Index begin = b * all_.block;
      const Index end = std::min(all_.tokens, begin + at_once_ * all_.block);
      walk_piece(begin, end - begin);
      settle(begin, signs, probability, counts);
    }
    return counts;
  }

 private:
  void allocate() {
    const Index tokens = std::min(all_.tokens, at_once_ * all_.block);
    const Index pairs = at_once_ * all_.block * all_.block;
    tokens_ = Array<Index, M>(machine_, tokens);
    squares_ = Array<double, M>(machine_, 2 * tokens);
    for (Array<double, M>* a : {&weights_, &uniforms_, &shift_, &log_own_, &plus_}) {
      *a = Array<double, M>(machine_, tokens);
    }
    constants_ = Array<WalkBlock, M>(machine_, at_once_);
    keys_ = Array<double, M>(machine_, at_once_ * d_ * all_.padded());
    exponents_ = Array<double, M>(machine_, pairs);
    if (blocks_.options.center) {
      mean_ = Array<double, M>(machine_, at_once_ * d_);
    }
    if (!blocks_.ones) {
      values_ = Array<double, M>(machine_, at_once_ * dv_ * all_.padded());
      inner_ = Array<double, M>(machine_, pairs);
    }
  }

  // Walks over tokens [begin, begin + count): P(+1) of each lies in host_plus_ afterwards.
  void walk_piece(Index begin, Index count) {
    const WalkLayout layout{count, all_.block};
    const auto from = static_cast<std::size_t>(begin);
    const auto size = static_cast<std::size_t>(count);
    tokens_.put(blocks_.tokens.subspan(from, size));
    weights_.put(blocks_.weights.subspan(from, size));
    uniforms_.put(blocks_.uniforms.subspan(from, size));
    const float* keys = head_.k.data();
    if (blocks_.options.center) {
      launch(CenterKeys{layout, keys, tokens_.data(), d_, mean_.data()});
    }
    launch(GatherChannels{layout, keys, tokens_.data(), d_, mean_.data(), keys_.data()});
    launch(Squares{layout, keys_.data(), d_, squares_.data()});
    if (!blocks_.ones) {
      launch(GatherChannels{layout, head_.v.data(), tokens_.data(), dv_, nullptr, values_.data()});
      launch(Squares{layout, values_.data(), dv_, squares_.data() + count});
    }
    host_squares_.assign(2 * size, 1.0);
    squares_.get(std::span(host_squares_).first(blocks_.ones ? size : 2 * size));

    key_gram_(machine_, layout, keys_.data(), d_, blocks_.options.scale, exponents_.data());
    if (!blocks_.ones) {
      value_gram_(machine_, layout, values_.data(), dv_, 1.0, inner_.data());
    }
    launch(WalkFactors{layout, exponents_.data(), inner_.data(), weights_.data(),
                       blocks_.options.value_bias, shift_.data()});
    take_logarithms(layout, begin);
    log_own_.put(host_log_own_);
    constants_.put(host_constants_);
    if (all_.block <= Walk<256>::kLongest) {
      launch_walk<256>(layout);
    } else {
      launch_walk<1024>(layout);
    }
    host_plus_.resize(size);
    plus_.get(host_plus_);
  }

  void take_logarithms(const WalkLayout& layout, Index begin) {
    const auto tokens = static_cast<std::size_t>(layout.tokens);
    host_log_own_.resize(tokens);
    host_constants_.resize(static_cast<std::size_t>(layout.blocks()));
    for (Index b = 0; b < layout.blocks(); ++b) {
      double log_r2 = -std::numeric_limits<double>::infinity();
      for (Index i = 0; i < layout.length(b); ++i) {
        const auto at = static_cast<std::size_t>(b * layout.block + i);
        host_log_own_[at] =
            log_diagonal(blocks_.options, host_squares_[at], host_squares_[tokens + at],
                         blocks_.weights[static_cast<std::size_t>(begin) + at]);
        log_r2 = std::max(log_r2, host_log_own_[at]);
      }
      host_constants_[static_cast<std::size_t>(b)] = {
          log_r2, theory_constant(blocks_.options, layout.length(b))};
    }
  }

  void settle(Index begin, std::span<std::int8_t> signs, std::span<double> probability,
              WalkCounts& counts) const {
    for (std::size_t i = 0; i < host_plus_.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(begin) + i;
      const double p = host_plus_[i];
      count_step(blocks_.options.step, p, counts);
      signs[at] = sign_of(p, blocks_.uniforms[at]);
      if (!probability.empty()) {
        probability[at] = clamp_probability(p);
      }
    }
  }

  template <int threads>
  void launch_walk(const WalkLayout& layout) {
    launch(Walk<threads>{layout, blocks_.options, exponents_.data(), shift_.data(), log_own_.data(),
                         weights_.data(), uniforms_.data(), constants_.data(), plus_.data()});
  }

  template <class Kernel>
  void launch(const Kernel& kernel) {
    machine_.launch(kernel, kernel.launch_blocks());
  }

  M& machine_;
  const HeadTensors<M>& head_;
  const BalanceBlocks& blocks_;
  MakeGram key_gram_, value_gram_;
  Index d_;
  Index dv_;
  WalkLayout all_;
  Index at_once_ = 1;  // token blocks of a piece

  Array<Index, M> tokens_;
  Array<double, M> squares_;  // of a piece's keys, then of its values
  Array<double, M> weights_, uniforms_, shift_, log_own_, plus_;
  Array<WalkBlock, M> constants_;
  Array<double, M> mean_, keys_, values_, exponents_, inner_;
  std::vector<double> host_squares_, host_log_own_, host_plus_;
  std::vector<WalkBlock> host_constants_;
};

/// balance_blocks on a machine: signs, probabilities and counts equal to the CPU's to the bit.
/// Memory: scratch is two arrays of block^2 float64 per token block and two of block d (or dv);
/// none exceeds scratch_bytes, unless a single token block does. Throws InputError where a block
/// has more than 4096 tokens.
template <class M>
WalkCounts balance_blocks_on(M& machine, const HeadTensors<M>& head, const BalanceBlocks& blocks,
                             std::span<std::int8_t> signs, std::span<double> probability) {
  return DeviceWalk<M>(machine, head, blocks).run(signs, probability);
}

}  // namespace kvbench
