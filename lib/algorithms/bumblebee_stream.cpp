// bumblebee-stream: a retained set S of at most tau tokens. Each newcomer joins it (S' = S +
// newcomer), the arriving queries add their attention within S' to its members' scores, and where
// S' exceeds tau the member whose removal costs the mixture least leaves:
//   argmin_i lambda (f(S') - f(S'-i))/f(S') + (1 - lambda) (c(S') - c(S'-i))/c(S'),
// f facility location with ground set S', c(A) = phi(sum_{i in A} acc_i); ties go to the lowest
// position. With ground set S' the first loss is sim(i,i) less the nearest neighbour's similarity
// (facility_location.hpp).
// [1] Kumari et al., "BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for
//     Infinite-Context Transformers", COLM 2024, Algorithm 2.
// Departs from [1]: |S| reaches tau ([1] evicts from |S'| = tau on and so holds tau - 1); a
// newcomer's score is its attention within S', also where a member leaves ([1], line 14: within S);
// scores are float32; similarities are multiples of 2^-30. With a recent window the newcomer is the
// token that leaves it: attention to the window itself, which is kept anyway, enters no score.
// Sinks are no members: the queries attend to them beside S', but they have no score, no similarity
// to anything counts, and they are in neither normaliser.
//
// In: positions 0 .. n-1 of K [n, d], Q group x [n, d]. Kept: tau tokens, weight 1.
//
// With a device the whole stream runs there when it is opened (attention/retained_stream.hpp), and
// the cache follows what came back: the same departures to the bit. phi = power, whose std::pow a
// device would round otherwise, stays on the CPU, unless lambda is 0 or 1, where phi has no say.
// `gain_evaluations` of diag counts the members whose loss was evaluated; a device evaluates all.
//
// Time per position O((group + 1 + r) tau d + group sink d), r the members whose nearest neighbour
// left. Memory O((tau + sink) d).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "algorithms/bumblebee_objective.hpp"
#include "algorithms/contract.hpp"
#include "algorithms/scoring.hpp"
#include "attention/device.hpp"
#include "core/error.hpp"
#include "core/math.hpp"

namespace kvbench {
namespace {

// Lower bounds on a member's loss are shrunk by this much for the rounding of phi (1e-13 relative
// at worst).
constexpr double kPhiSlack = 1e-10;

constexpr Index kPositionBytes = 4;  // the position: breaks ties
constexpr Index kScoreBytes = 4;     // the accumulated score

class BumbleBeeStream final : public StreamCache {
 public:
  BumbleBeeStream(const StreamTask& task, const Params& params)
      : head_(task.head),
        lambda_(params.real("lambda")),
        reduce_(reduce_of(params)),
        tau_(most_tokens(task, params)),
        on_device_(task.device != nullptr &&
                   (params.text("phi") == "log" || lambda_ == 0.0 || lambda_ == 1.0)),
        kept_(on_device_ ? 0 : tau_ + 1, task.head.d(), similarity_of(params), lambda_ > 0.0),
        sink_count_(on_device_ || !(lambda_ < 1.0) ? 0 : std::min(task.sink, task.head.n())),
        sinks_(sink_count_, task.head.d()) {
    phi_ = phi_of(params);
    if (on_device_) {
      departures_ = task.device->departures(
          {tau_, task.recent, lambda_, similarity_of(params), reduce_, task.sink});
    }
  }

  void append(Index j, Index leaving) override {
    if (j < sink_count_) {
      sinks_.set(j, head_.k.view().row_span(j));
    }
    if (leaving < 0 || tau_ == 0) {
      return;
    }
    if (on_device_) {
      follow(departures_.at(static_cast<std::size_t>(j)), leaving);
      return;
    }
    kept_.add(head_.k.view().row_span(leaving));
    tokens_.push_back(leaving);
    scores_.push_back(0.0F);
    if (lambda_ < 1.0) {
      score(j);
    }
    if (kept_.size() <= tau_) {
      return;
    }
    const Index leaves = least_loss();
    kept_.remove(leaves);
    tokens_[static_cast<std::size_t>(leaves)] = tokens_.back();
    tokens_.pop_back();
    scores_[static_cast<std::size_t>(leaves)] = scores_.back();
    scores_.pop_back();
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = tokens_;
    std::sort(out.held.tokens.begin(), out.held.tokens.end());
    out.aux_bytes = state_bytes(lambda_) * static_cast<Index>(tokens_.size());
    out.diag = {{"gain_evaluations", fmt::format("{}", evaluations_)}};
    return out;
  }

 private:
  // What the next step needs of a member beside its key and value.
  static Index state_bytes(double lambda) {
    return kPositionBytes + (lambda > 0.0 ? RetainedKeys::kNeighbourBytes : 0) +
           (lambda < 1.0 ? kScoreBytes : 0);
  }

  static Index most_tokens(const StreamTask& task, const Params& params) {
    if (!params.is_auto("tokens")) {
      return std::min(params.integer("tokens"), task.head.n());
    }
    if (!task.budget_bytes) {
      throw InputError("bumblebee-stream: no size: give a budget or tokens=");
    }
    return std::min(task.head.n(), *task.budget_bytes / (task.head.pair_bytes() +
                                                         state_bytes(params.real("lambda"))));
  }

  // Takes in `leaving`, drops `gone` (-1: none). Tokens come and stay in ascending order.
  void follow(Index gone, Index leaving) {
    tokens_.push_back(leaving);
    if (gone >= 0) {
      evaluations_ += static_cast<Index>(tokens_.size());
      tokens_.erase(std::lower_bound(tokens_.begin(), tokens_.end(), gone));
    }
  }

  // attention_[g][first + i] = <query g, unit key i>.
  void multiply(const UnitKeys& units, Index count, Index first) {
    for (Index b = 0; b * UnitKeys::kBlock < count; ++b) {
      inner_products(queries_, units.block(b), products_);
      for (Index g = 0; g < head_.group(); ++g) {
        std::copy_n(products_.row(g), UnitKeys::kBlock,
                    attention_.row(g) + first + b * UnitKeys::kBlock);
      }
    }
  }

  // Products to logits; returns the larger of `most` and the largest.
  double weigh(const UnitKeys& units, Index count, double* p, double most) const {
    for (Index i = 0; i < count; ++i) {
      p[i] = head_.scale * units.norm(i) * p[i];
      most = std::max(most, p[i]);
    }
    return most;
  }

  // Adds the attention of the group's queries at position j within sinks and S'.
  void score(Index j) {
    const UnitKeys& units = kept_.units();
    const Index size = kept_.size();
    const auto count = static_cast<std::size_t>(size);
    const Index row = j - head_.q_start();
    queries_.resize(head_.group(), head_.d());
    for (Index g = 0; g < head_.group(); ++g) {
      const float* q = head_.q[static_cast<std::size_t>(g)].row(row);
      std::transform(q, q + head_.d(), queries_.row(g),
                     [](float x) { return static_cast<double>(x); });
    }
    attention_.resize(head_.group(), units.padded() + sinks_.padded());
    multiply(units, size, 0);
    multiply(sinks_, sink_count_, units.padded());
    reduced_.assign(count, 0.0);
    for (Index g = 0; g < head_.group(); ++g) {
      double* p = attention_.row(g);
      double* sinks = p + units.padded();
      double shift = -std::numeric_limits<double>::infinity();
      shift = weigh(units, size, p, shift);
      shift = weigh(sinks_, sink_count_, sinks, shift);
#pragma omp simd
      for (Index i = 0; i < size; ++i) {
        p[i] = exp_shared(p[i] - shift);
      }
#pragma omp simd
      for (Index i = 0; i < sink_count_; ++i) {
        sinks[i] = exp_shared(sinks[i] - shift);
      }
      const double before = std::accumulate(sinks, sinks + sink_count_, 0.0);
      const double inverse = 1.0 / std::accumulate(p, p + size, before);
      for (std::size_t i = 0; i < count; ++i) {
        const double share = p[i] * inverse;
        reduced_[i] = reduce_ == Reduce::max ? std::max(reduced_[i], share) : reduced_[i] + share;
      }
    }
    const double part = reduce_ == Reduce::mean ? 1.0 / static_cast<double>(head_.group()) : 1.0;
    for (std::size_t i = 0; i < count; ++i) {
      scores_[i] = static_cast<float>(static_cast<double>(scores_[i]) + reduced_[i] * part);
    }
  }

  // The place of the member of S' whose removal costs least. The exact loss of importance is asked
  // for only where a bound, phi'(sum) acc_i, does not already rule the member out.
  Index least_loss() {
    const auto count = static_cast<std::size_t>(kept_.size());
    const double f_all = lambda_ > 0.0 ? static_cast<double>(kept_.value()) : 0.0;
    const ConcavePhi::Point all = phi_.at(std::accumulate(scores_.begin(), scores_.end(), 0.0));
    const double f_weight = f_all > 0.0 ? lambda_ / f_all : 0.0;
    const double c_weight = all.y > 0.0 ? (1.0 - lambda_) / all.y : 0.0;
    bounds_.resize(count);
    const double slope = c_weight > 0.0 ? c_weight * phi_.slope(all) * (1.0 - kPhiSlack) : 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto acc = static_cast<double>(scores_[i]);
      // Without f the order of losses is that of acc, which rounding in phi would blur.
      bounds_[i] =
          f_weight > 0.0
              ? f_weight * static_cast<double>(kept_.loss(static_cast<Index>(i))) + slope * acc
              : acc;
    }
    const auto loss = [&](std::size_t i) {
      ++evaluations_;
      return f_weight > 0.0 && c_weight > 0.0
                 ? f_weight * static_cast<double>(kept_.loss(static_cast<Index>(i))) +
                       c_weight * phi_.decrement(all, static_cast<double>(scores_[i]))
                 : bounds_[i];
    };
    auto best = static_cast<std::size_t>(std::min_element(bounds_.begin(), bounds_.end()) -
                                         bounds_.begin());
    double least = loss(best);
    for (std::size_t i = 0; i < count; ++i) {
      if (i == best || bounds_[i] > least) {
        continue;
      }
      const double other = loss(i);
      if (other != least ? other < least : tokens_[i] < tokens_[best]) {
        least = other;
        best = i;
      }
    }
    return static_cast<Index>(best);
  }

  const KvHead& head_;
  double lambda_;
  Reduce reduce_;
  Index tau_;
  bool on_device_;
  std::vector<Index> departures_;  // of a device, by position
  ConcavePhi phi_;
  RetainedKeys kept_;
  Index sink_count_;  // that scores ask for: none on a device, which has its own, or without scores
  UnitKeys sinks_;
  std::vector<Index> tokens_;  // by place, as kept_ orders them
  std::vector<float> scores_;
  Index evaluations_ = 0;
  MatrixD queries_, products_, attention_;  // scratch
  std::vector<double> reduced_, bounds_;
};

std::unique_ptr<StreamCache> open_stream(const StreamTask& task, const Params& params) {
  return std::make_unique<BumbleBeeStream>(task, params);
}

}  // namespace

Method method_bumblebee_stream() {
  MethodInfo info;
  info.name = "bumblebee-stream";
  info.summary =
      "retained set from which the token leaves whose loss to facility location and attention is "
      "least";
  info.source = "Kumari et al., BumbleBee (papers/bumblebee), Algorithm 2";
  info.departures =
      "holds tau tokens, not tau - 1; a newcomer's score is its attention within S'; float32 "
      "scores; similarities rounded to multiples of 2^-30; the recent window enters no score";
  info.params = objective_params();
  info.params.push_back(
      integer_param("tokens", "auto", 0, 1e12, "tokens", "tau, in place of a budget"));
  info.params.push_back(reduce_param());
  info.grid = {"lambda=0.1,0.3,0.6;phi=log,power"};
  info.sizes = {"tokens"};
  info.scores = true;
  Method method;
  method.info = info;
  method.open_stream = open_stream;
  return method;
}

}  // namespace kvbench
