// bumblebee: the B tokens that greedily maximise a mixture of how well their keys represent all
// keys and how much attention they received:
//   g(A) = lambda f(A)/f(M) + (1 - lambda) c(A)/c(M),  f(A) = sum_{v in M} max_{u in A} sim(v, u),
//   c(A) = phi(sum_{i in A} acc_i), acc_i accumulated attention from the scoring queries.
// A term whose normaliser is 0 is 0. The floor(recent_share B) most recent tokens are in A from the
// start (a split that [1] does not have; 0 is its objective); the objective covers all of M.
// [1] Kumari et al., "BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for
//     Infinite-Context Transformers", COLM 2024, Algorithm 1.
// [2] Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", 1978.
// [3] Mirzasoleiman et al., "Lazier than lazy greedy", AAAI 2015.
// In: K [m, d] of the task's tokens, acc [m]. Out: B positions, weight 1.
// Time O(m^2 d / 2) for the similarities; then greedy O(B m^2), lazy O(e m) for e evaluations of f
// (gain_evaluations), stochastic O(m^2 log(1/epsilon)); a further factor d if the matrix exceeds
// matrix_mib. Memory O(m^2) with the matrix, otherwise O(m d).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>

#include "algorithms/shared/bumblebee_objective.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"

namespace kvbench::method_bumblebee {
namespace {

// Relative margin of bounds on the importance term, for the rounding of phi's increments (1e-13 at
// worst, for phi=power with alpha = 0.001).
constexpr double kPhiSlack = 1e-10;

struct Gain {
  double value = 0.0;  // g(A + place) - g(A), or a number of the same order
  double bound = 0.0;  // no later gain of this member exceeds it
  Index place = 0;
  std::int64_t f = 0;  // f(A + place) - f(A) for the A with `f_round` members
  Index f_round = 0;
  Index c_round = 0;  // members when importance was computed
};

bool better(double value, Index place, const Gain& than) {
  return value != than.value ? value > than.value : place < than.place;
}

// g over the task's tokens and the A selected so far. A `place` is an index into the tokens.
class Mixture {
 public:
  Mixture(const Task& task, const Params& params)
      : n_(task.count()), candidates_(n_), acc_(n_, 0.0) {
    const double lambda = params.real("lambda");
    phi_ = phi_of(params);
    if (lambda < 1.0) {
      acc_ = gather_scores(accumulated_scores(task, params), task.tokens);
      const double whole = phi_.at(std::accumulate(acc_.begin(), acc_.end(), 0.0)).y;
      c_weight_ = whole > 0.0 ? (1.0 - lambda) / whole : 0.0;
    }
    if (lambda > 0.0) {
      f_ = task.backend.facility_location(task.head, task.tokens, similarity_of(params),
                                          params.integer("matrix_mib") << 20);
      f_weight_ = f_->total() > 0 ? lambda / static_cast<double>(f_->total()) : 0.0;
    }
  }

  Index candidates() const { return candidates_; }
  Index selected() const { return selected_; }
  Index evaluations() const { return evaluations_; }
  Index batch() const { return uses_f() ? f_->batch() : 1; }
  Index least_batch() const { return uses_f() ? f_->least_batch() : 1; }

  // Gains of all candidates in order of place.
  std::vector<Gain> first_gains() {
    std::vector<std::int64_t> f(n_, 0);
    if (uses_f()) {
      f = f_->all_gains();
    }
    evaluations_ += candidates_;
    std::vector<Gain> out(candidates_);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i].place = static_cast<Index>(i);
      out[i].f = f[i];
      out[i].f_round = selected_;
      fill(out[i]);
    }
    return out;
  }

  // Recomputes gains that are not for the current A.
  void refresh(std::span<Gain> gains) {
    stale_.clear();
    for (const Gain& gain : gains) {
      if (gain.f_round != selected_) {
        stale_.push_back(gain.place);
      }
    }
    f_gains_.assign(stale_.size(), 0);
    if (uses_f()) {
      f_->gains(stale_, f_gains_);
    }
    evaluations_ += static_cast<Index>(stale_.size());
    auto f = f_gains_.begin();
    for (Gain& gain : gains) {
      if (gain.f_round != selected_) {
        gain.f = *f++;
        gain.f_round = selected_;
      }
      fill(gain);
    }
  }

  // Updates the gain's importance in O(1). Returns false if it was current.
  bool tighten(Gain& gain) const {
    if (gain.c_round == selected_) {
      return false;
    }
    fill(gain);
    return true;
  }

  void select(Index place) {
    if (uses_f()) {
      f_->add(place);
    }
    at_ = phi_.at(at_.x + acc_[place]);
    ++selected_;
  }

  // Selects the last `count` members. Must precede any gain.
  void select_last(Index count) {
    for (Index place = n_ - count; place < n_; ++place) {
      select(place);
    }
    candidates_ = n_ - count;
  }

 private:
  bool uses_f() const { return f_weight_ > 0.0; }

  void fill(Gain& gain) const {
    const double acc = acc_[gain.place];
    gain.c_round = selected_;
    if (!uses_f()) {
      // phi increases, so acc has the order of the gains, without phi's rounding.
      gain.value = gain.bound = acc;
      return;
    }
    // Rounding is monotone and f's gains only fall, so the bound holds.
    const double f = f_weight_ * static_cast<double>(gain.f);
    const double c = c_weight_ > 0.0 ? c_weight_ * phi_.increment(at_, acc) : 0.0;
    gain.value = f + c;
    gain.bound = f + c * (1.0 + kPhiSlack);
  }

  Index n_;
  Index candidates_;  // members [0, candidates_) may be selected
  std::vector<double> acc_;
  ConcavePhi phi_;
  ConcavePhi::Point at_;
  std::unique_ptr<FacilityGains> f_;
  double f_weight_ = 0.0;  // lambda / f(M)
  double c_weight_ = 0.0;  // (1 - lambda) / c(M)
  Index selected_ = 0;
  Index evaluations_ = 0;
  std::vector<Index> stale_;  // scratch
  std::vector<std::int64_t> f_gains_;
};

const Gain& best_of(std::span<const Gain> gains) {
  const Gain* best = &gains.front();
  for (const Gain& gain : gains) {
    if (better(gain.value, gain.place, *best)) {
      best = &gain;
    }
  }
  return *best;
}

std::vector<Index> greedy(Mixture& g, Index count) {
  std::vector<Index> out;
  std::vector<Gain> left = g.first_gains();
  while (static_cast<Index>(out.size()) < count) {
    g.refresh(left);
    const Index place = best_of(left).place;
    g.select(place);
    out.push_back(place);
    std::erase_if(left, [&](const Gain& gain) { return gain.place == place; });
  }
  return out;
}

// [2]: gains only fall, so a member whose bound is below a current gain cannot win. Others are
// refreshed, best bound first, and importance (cheap) before f (expensive).
std::vector<Index> lazy(Mixture& g, Index count) {
  const auto later = [](const Gain& a, const Gain& b) {
    return a.bound != b.bound ? a.bound < b.bound : a.place > b.place;
  };
  std::priority_queue<Gain, std::vector<Gain>, decltype(later)> queue(later, g.first_gains());
  std::vector<Index> out;
  std::vector<Gain> fresh;
  while (static_cast<Index>(out.size()) < count) {
    fresh.clear();
    std::size_t best = 0;
    // Most steps need few candidates.
    for (Index batch = g.least_batch();; batch = std::min(2 * batch, g.batch())) {
      const std::size_t begin = fresh.size();
      while (!queue.empty() && static_cast<Index>(fresh.size() - begin) < batch &&
             (begin == 0 || better(queue.top().bound, queue.top().place, fresh[best]))) {
        Gain next = queue.top();
        queue.pop();
        if (g.tighten(next)) {
          queue.push(next);
        } else {
          fresh.push_back(next);
        }
      }
      if (fresh.size() == begin) {
        break;
      }
      g.refresh(std::span(fresh).subspan(begin));
      for (std::size_t i = begin; i < fresh.size(); ++i) {
        best = better(fresh[i].value, fresh[i].place, fresh[best]) ? i : best;
      }
    }
    g.select(fresh[best].place);
    out.push_back(fresh[best].place);
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      if (i != best) {
        queue.push(fresh[i]);
      }
    }
  }
  return out;
}

// [3]: each step selects the best of a uniform sample of ceil(n/B log(1/epsilon)) of the remaining
// candidates; n and B exclude the recent tokens.
std::vector<Index> stochastic(Mixture& g, Index count, double epsilon, RngStream random) {
  std::vector<Index> left(g.candidates());
  std::iota(left.begin(), left.end(), Index{0});
  const double wanted =
      std::ceil(static_cast<double>(g.candidates()) /
                static_cast<double>(std::max<Index>(count, 1)) * std::log(1.0 / epsilon));
  std::vector<Index> out;
  std::vector<Gain> sample;
  while (static_cast<Index>(out.size()) < count) {
    const auto size =
        static_cast<std::size_t>(std::clamp(wanted, 1.0, static_cast<double>(left.size())));
    sample.assign(size, {});
    for (std::size_t i = 0; i < size; ++i) {  // partial shuffle
      std::swap(left[i], left[i + random.next_below(left.size() - i)]);
      sample[i].place = left[i];
      sample[i].f_round = -1;
    }
    g.refresh(sample);
    const Index place = best_of(sample).place;
    g.select(place);
    out.push_back(place);
    *std::find(left.begin(), left.end(), place) = left.back();
    left.pop_back();
  }
  return out;
}

std::vector<Index> choose(Mixture& g, Index count, const Params& params, const Rng& rng) {
  const std::string& optimizer = params.text("optimizer");
  if (optimizer == "lazy") {
    return lazy(g, count);
  }
  if (optimizer == "greedy") {
    return greedy(g, count);
  }
  return stochastic(g, count, params.real("epsilon"), rng.stream("sample"));
}

Compressed compress(const Task& task, const Params& params) {
  const Index kept = pairs_to_keep(task, params);
  const Index recent = kept == task.count() ? kept : floor_share(params.real("recent_share"), kept);
  Compressed out;
  Index evaluations = 0;
  if (recent < kept) {
    Mixture g(task, params);
    g.select_last(recent);
    std::vector<Index> places = choose(g, kept - recent, params, task.rng);
    evaluations = g.evaluations();
    std::sort(places.begin(), places.end());
    for (const Index place : places) {
      out.held.tokens.push_back(task.tokens[place]);
    }
  }
  append_all(out.held.tokens, task.tokens.last(recent));
  out.diag = {{"gain_evaluations", fmt::format("{}", evaluations)}};
  return out;
}

}  // namespace

Method make() {
  MethodInfo info;
  info.name = "bumblebee";
  info.family = Family::eviction;
  info.copies = 1.5;
  info.matrix_bytes = [](const Params& p, const LayerFacts& l, Index) {
    const Index bytes = 4 * l.n * l.n;
    return bytes <= p.integer("matrix_mib") << 20 ? bytes : 0;
  };
  info.summary =
      "recent tokens, and a greedy maximum of facility location over keys mixed with attention";
  info.source =
      "Kumari et al., BumbleBee: Dynamic KV-Cache Streaming Submodular Summarization for "
      "Infinite-Context Transformers, Algorithm 1";
  info.departures =
      "lazy greedy by default, the same set as greedy (the paper runs optimizer=stochastic); "
      "recent_share, which the paper's text has not; chunked prefill (section 6.4) cannot be "
      "replayed; "
      "similarities rounded to multiples of 2^-30, so that sums are exact";
  info.params =
      joined({size_params(),
              objective_params(),
              {
                  real_param("recent_share", "0.5", 0, 1, "share of the kept tokens",
                             "most recent tokens, rounded down, in the set from the start; larger "
                             "chooses fewer by the objective; 0: the objective alone"),
                  choice_param("optimizer", {"lazy", "greedy", "stochastic"},
                               "Minoux's lazy greedy, plain greedy (the same set), or the best of "
                               "a random sample at each step"),
                  real_param("epsilon", "1e-5", 1e-300, 1, "",
                             "stochastic: samples of ceil(m/B log(1/epsilon)) tokens, m and B "
                             "without the recent ones; larger draws smaller samples"),
                  reduce_param(),
                  integer_param("matrix_mib", "256", 0, 1048576, "MiB",
                                "largest similarity matrix (4 m^2 bytes) to store; larger ones are "
                                "recomputed as needed; does not change the result"),
              }});
  info.grid = {"lambda=0.1,0.3,0.6;recent_share=0,0.5,0.75", "phi=power"};
  info.holds = Holds::tokens;
  info.facts = [](const Params& p) {
    return JobFacts{.scoring = {Scoring()}, .random = p.text("optimizer") == "stochastic"};
  };
  return {info, compress};
}

}  // namespace kvbench::method_bumblebee
