// bumblebee-stream: a retained set S of at most tau tokens. Each newcomer joins it (S' = S +
// newcomer), and the arriving queries add their attention within S' to its members' scores. If S'
// exceeds tau, the member with the smallest loss leaves:
//   argmin_i lambda (f(S') - f(S'-i))/f(S') + (1 - lambda) (c(S') - c(S'-i))/c(S'),
// f facility location with ground set S', c(A) = phi(sum_{i in A} acc_i); ties go to the lowest
// position (streams/retention.hpp).
// [1] Kumari et al., "BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for
//     Infinite-Context Transformers", COLM 2024, Algorithm 2.
// The newcomer is the token that leaves the recent window; attention to the window enters no score.
// Queries also attend to sinks, which have no score or similarity and enter neither normaliser.
//
// A GPU decides the whole stream when it is opened, equal to the bit. phi=power with 0 < lambda < 1
// runs on the CPU, as a GPU rounds std::pow differently. `gain_evaluations` is larger on a GPU.
//
// In: K [n, d], Q group x [n, d]. Out: tau tokens, weight 1. Time per position O((group + 1 + r)
// tau d + group sink d), r the members whose nearest neighbour left. Memory O((tau + sink) d).
#include <fmt/format.h>

#include <algorithm>

#include "algorithms/contract.hpp"
#include "algorithms/shared/bumblebee_objective.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"

namespace kvbench::method_bumblebee_stream {
namespace {

constexpr Index kPositionBytes = 4;   // position, for ties
constexpr Index kNeighbourBytes = 8;  // similarity and index of the nearest member
constexpr Index kScoreBytes = 4;      // accumulated score

class BumbleBeeStream final : public StreamCache {
 public:
  BumbleBeeStream(const StreamTask& task, const Params& params)
      : lambda_(params.real("lambda")),
        stream_(task.backend.retention(task.head, rules(task, params))) {}

  void append(Index j, Index leaving) override {
    const Departure gone = stream_->step(j);
    evaluations_ += gone.evaluations;
    if (leaving >= 0) {
      tokens_.push_back(leaving);
    }
    if (gone.token >= 0) {
      tokens_.erase(std::lower_bound(tokens_.begin(), tokens_.end(), gone.token));
    }
  }

  Compressed view() const override {
    Compressed out;
    out.held.tokens = tokens_;
    out.aux_bytes = state_bytes(lambda_) * static_cast<Index>(tokens_.size());
    out.diag = {{"gain_evaluations", fmt::format("{}", evaluations_)}};
    return out;
  }

 private:
  // Bytes of a member beside its key and value.
  static Index state_bytes(double lambda) {
    return kPositionBytes + (lambda > 0.0 ? kNeighbourBytes : 0) + (lambda < 1.0 ? kScoreBytes : 0);
  }

  static RetentionRules rules(const StreamTask& task, const Params& params) {
    RetentionRules out;
    out.lambda = params.real("lambda");
    out.kind = similarity_of(params);
    out.reduce = reduce_of(params);
    out.phi = phi_of(params);
    out.window = task.recent;
    out.sink = task.sink;
    out.kept = params.is_auto("tokens") ? given_budget(task.budget_bytes, "tokens=") /
                                              (task.head.pair_bytes() + state_bytes(out.lambda))
                                        : params.integer("tokens");
    out.kept = std::min(out.kept, task.head.n());
    return out;
  }

  double lambda_;
  std::unique_ptr<RetentionStream> stream_;
  std::vector<Index> tokens_;  // ascending
  Index evaluations_ = 0;
};

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "bumblebee-stream";
  info.family = Family::eviction;
  info.summary =
      "retained set; the token with the smallest loss in facility location and attention leaves";
  info.source =
      "Kumari et al., BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for "
      "Infinite-Context Transformers, Algorithm 2";
  info.departures =
      "holds tau tokens, not tau - 1; a newcomer's score is its attention within S'; float32 "
      "scores; similarities rounded to multiples of 2^-30; the recent window enters no score";
  info.params =
      joined({objective_params(),
              {integer_param("tokens", "auto", 0, 1e12, "tokens", "tau, in place of a budget"),
               reduce_param()}});
  info.grid = {"lambda=0.1,0.3,0.6;phi=log,power"};
  info.sizes = {"tokens"};
  info.facts = [](const Params&) { return JobFacts{.scoring = {Scoring()}}; };
  return {info, nullptr, open_as<BumbleBeeStream>};
}

}  // namespace kvbench::method_bumblebee_stream
