#include "algorithms/shared/matching.hpp"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "algorithms/nested_methods.hpp"
#include "algorithms/registry.hpp"
#include "algorithms/shared/bounded_least_squares.hpp"
#include "algorithms/shared/matching_pursuit.hpp"
#include "algorithms/shared/reference_attention.hpp"
#include "algorithms/shared/size.hpp"
#include "attention/cholesky.hpp"
#include "core/decompositions.hpp"
#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/vector_sums.hpp"

namespace kvbench {
namespace {

constexpr Index kWeightBytes = 4;
constexpr const char* kEqual = "equal";  // heads: no method shares
constexpr const char* kPursuit = "omp";  // keys: orthogonal matching pursuit
// Bounds on weights for keys=omp; those of the paper's public code.
constexpr double kPursuitLow = 1e-12;
constexpr double kPursuitHigh = 1096.6331584284585;  // exp(7)
// The ridge r = ridge trace / B keeps the condition of X'X + r below 1 + B / ridge. From here on a
// Cholesky factorisation loses at most half of float64's digits, below float32 resolution.
constexpr double kSafeRidge = 1e-8;

void takes_selecting(const Method& m) {
  if (m.info.usual_facts().scope != Scope::head) {
    throw InputError(
        fmt::format("{0} shares its budget with other heads, expected heads={0}", m.info.name));
  }
  if (!can_select(m)) {
    throw InputError(fmt::format("{} cannot select a requested number of tokens", m.info.name));
  }
}

void takes_sharing(const Method& m) {
  if (m.survey == nullptr || m.share == nullptr) {
    throw InputError(fmt::format("{} shares no budget over heads", m.info.name));
  }
}

const Method* sharing(const Params& params) {
  const std::string& heads = params.text("heads");
  return heads == kEqual ? nullptr : &find_method(heads);
}

std::optional<KeyScore> score_of(const std::string& keys) {
  return keys == "rms"    ? std::optional(KeyScore::rms)
         : keys == "mean" ? std::optional(KeyScore::mean)
         : keys == "max"  ? std::optional(KeyScore::max)
                          : std::nullopt;
}

std::vector<Index> selected_by(const Method& method, const Task& task, const Params& params,
                               Index count) {
  Task asked = task;
  asked.budget_bytes.reset();
  asked.share = nullptr;
  asked.rng = task.rng.part(method.info.name);
  const Compressed c = method.compress(
      asked, part_params(method, params).with({{"tokens", fmt::format("{}", count)}}));
  if (c.made.k.rows() > 0 || static_cast<Index>(c.held.tokens.size()) > count) {
    throw std::logic_error(
        fmt::format("{}: holds only tokens, got made entries or more tokens "
                    "than requested",
                    method.info.name));
  }
  return c.held.tokens;
}

std::vector<Index> keys_to_keep(const Task& task, const Params& params,
                                const ReferenceAttention& reference, Index count) {
  const std::string& keys = params.text("keys");
  if (score_of(keys)) {
    return keep_top(task.tokens, reference.scores(), count);
  }
  if (keys == kPursuit) {
    std::vector<Index> out = matching_pursuit(reference.exponentials(task.head, task.tokens),
                                              reference.mass(), count, kPursuitLow, kPursuitHigh);
    for (Index& i : out) {
      i = task.tokens[i];
    }
    return out;
  }
  return selected_by(find_method(keys), task, params, count);
}

double norm(const MatrixD& m) {
  return std::sqrt(dot(m.data(), m.data(), m.rows() * m.cols()));
}

// Shortest least-squares solution of |X Z - T|^2 + r |Z|^2 by complete orthogonal decomposition,
// several times slower than Cholesky. Only here the order of summation is Eigen's and depends on
// the instruction set.
MatrixD shortest_solution(const MatrixD& x, const MatrixD& t, double r) {
  const Index below = r > 0.0 ? x.cols() : 0;
  Eigen::MatrixXd stacked = Eigen::MatrixXd::Zero(x.rows() + below, x.cols());
  stacked.topRows(x.rows()) = Eigen::Map<const RowMajorMatrix>(x.data(), x.rows(), x.cols());
  stacked.bottomRows(below).diagonal().array() = std::sqrt(r);
  Eigen::MatrixXd right = Eigen::MatrixXd::Zero(stacked.rows(), t.cols());
  right.topRows(x.rows()) = Eigen::Map<const RowMajorMatrix>(t.data(), t.rows(), t.cols());
  MatrixD out(x.cols(), t.cols());
  least_squares(stacked, right, {out.data(), out.rows(), out.cols()});
  return out;
}

// Solves (X'X + r) Z = X'T; with r = 0, the shortest least-squares solution. With a ridge, by the
// Cholesky factor of the smaller Gram matrix: (X'X + r)^-1 X' = X' (XX' + r)^-1 if B > R. Without
// one X'X is singular there, and forming it would square the condition.
MatrixD ridge_solution(const MatrixD& x, const MatrixD& t, double ridge) {
  const double r =
      ridge * dot(x.data(), x.data(), x.rows() * x.cols()) / static_cast<double>(x.cols());
  if (ridge >= kSafeRidge * static_cast<double>(std::max(x.cols(), x.rows())) && r > 0.0) {
    const bool wide = x.cols() > x.rows();
    MatrixD x_t;
    MatrixD system;
    MatrixD out;
    transpose(x, x_t);
    inner_products(wide ? x : x_t, wide ? x_t : x, system, true);
    for (Index i = 0; i < system.rows(); ++i) {
      system.row(i)[i] += r;
    }
    if (factor_cholesky(system)) {
      if (wide) {
        MatrixD along = t;
        solve_cholesky(system, along);
        inner_products(x_t, along, out);
      } else {
        inner_products(x_t, t, out);
        solve_cholesky(system, out);
      }
      return out;
    }
  }
  return shortest_solution(x, t, r);
}

MatrixD difference(const MatrixD& a, const MatrixD& b) {
  MatrixD out = a;
  add(-1.0, b.data(), b.rows() * b.cols(), out.data());
  return out;
}

double ratio(double part, double whole) {
  return whole > 0.0 ? part / whole : part;
}

struct Fit {
  std::vector<float> weights;  // [B]
  Matrix values;               // [B, dv]; empty: kept
  Figures diag;

  void add_figure(const char* name, double x) { diag.emplace_back(name, fmt::format("{:.6g}", x)); }
};

// The head with the kept tokens' stored keys, if they are to be fitted to.
std::optional<KvHead> coded_head(const Task& task, std::span<const Index> kept) {
  if (task.code_keys == nullptr) {
    return std::nullopt;
  }
  KvHead out;  // only the fields that the fits read
  out.k = task.head.k;
  out.scale = task.head.scale;
  out.dtype = task.head.dtype;
  out.precision = task.head.precision;
  const Matrix coded = (*task.code_keys)(copy_rows(task.head.k, kept), kept);
  for (Index i = 0; i < coded.rows(); ++i) {
    std::copy_n(coded.row(i), coded.cols(), out.k.row(kept[i]));
  }
  return out;
}

bool nothing_missing(const Task& task, std::span<const Index> kept) {
  return static_cast<Index>(kept.size()) == task.count() && task.code_keys == nullptr;
}

void fit_weights(const Task& task, const KvHead& head, const Params& params,
                 const ReferenceAttention& reference, std::span<const Index> kept, Fit& fit) {
  const double low = params.real("w_min");
  const double high = params.real("w_max");
  double mean = 0.0;
  Index at_low = 0;
  Index at_high = 0;
  if (nothing_missing(task, kept) && low <= 1.0 && high >= 1.0) {
    fit.weights.assign(kept.size(), 1.0F);  // the optimum closest to 1
    mean = 1.0;
  } else {
    const BoundedFit best =
        bounded_least_squares(reference.exponentials(head, kept), reference.mass(), low, high);
    fit.weights.clear();
    const double near = 1e-3 * (high - low);
    for (const double w : best.w) {
      fit.weights.push_back(static_cast<float>(w));
      mean += w / static_cast<double>(kept.size());
      at_low += w <= low + near ? 1 : 0;
      at_high += w >= high - near ? 1 : 0;
    }
    double square = 0.0;
    for (const double y : reference.mass()) {
      square += y * y;
    }
    fit.add_figure("mass_error", std::sqrt(ratio(best.objective, square)));
    fit.add_figure("fit_gap", ratio(best.gap, square));
  }
  fit.add_figure("weight_mean", mean);
  fit.add_figure("at_min", static_cast<double>(at_low));
  fit.add_figure("at_max", static_cast<double>(at_high));
}

void fit_values(const Task& task, const KvHead& head, const Params& params,
                const ReferenceAttention& reference, std::span<const Index> kept, Fit& fit) {
  fit.values = copy_rows(task.head.v, kept);
  if (reference.rows() == 0 || nothing_missing(task, kept)) {
    return;  // nothing to fit
  }
  const MatrixD x = reference.softmax(head, kept, fit.weights);
  MatrixD v;
  MatrixD held;  // output of the kept tokens' own values
  gather_rows(task.head.v, kept, v);
  inner_products(x, v, held);
  const MatrixD missing = difference(reference.output(), held);
  const MatrixD moved = ridge_solution(x, missing, params.real("ridge"));
  for (Index i = 0; i < fit.values.rows(); ++i) {
    for (Index t = 0; t < fit.values.cols(); ++t) {
      fit.values.row(i)[t] = stored(task.head.dtype, v.row(i)[t] + moved.row(i)[t]);
    }
  }
  inner_products(x, moved, held);
  fit.add_figure("output_error", ratio(norm(difference(missing, held)), norm(reference.output())));
}

Survey survey(const Task& task, const Params& params) {
  const Method& method = *sharing(params);
  return method.survey(task, part_params(method, params));
}

std::vector<Share> share(std::span<const Survey> surveys, const Params& params) {
  const Method& method = *sharing(params);
  return method.share(surveys, part_params(method, params));
}

}  // namespace

JobFacts matching_facts(const Params& params) {
  if (params.real("w_min") > params.real("w_max")) {
    throw InputError(fmt::format("{}: got w_min = {} above w_max = {}, expected w_min <= w_max",
                                 params.method(), params.text("w_min"), params.text("w_max")));
  }
  if (sharing(params) != nullptr && !(params.is_auto("tokens") && params.is_auto("T"))) {
    throw InputError(fmt::format("{}: got tokens or T with heads={}, expected a budget to share",
                                 params.method(), params.text("heads")));
  }
  const auto scope_of = [&](const Method& part) {
    return part.info.facts(part_params(part, params)).scope;
  };
  const std::string& keys = params.text("keys");
  if (!score_of(keys) && keys != kPursuit && scope_of(find_method(keys)) != Scope::head) {
    throw InputError(
        fmt::format("{0}: got keys={1} that shares its budget with other heads, expected heads={1}",
                    params.method(), keys));
  }
  const Method* const heads = sharing(params);
  const Scope scope = heads == nullptr ? Scope::head : scope_of(*heads);
  if (heads != nullptr && scope == Scope::head) {
    throw InputError(
        fmt::format("{}: got heads={} that shares no budget over heads, expected "
                    "parameters with which it does",
                    params.method(), params.text("heads")));
  }
  return {.scope = scope, .weights = {params.text("weights") == "fitted" ? kWeightBytes : 0, 0}};
}

Method matching_method(std::string name, Compressed (*compress)(const Task&, const Params&),
                       const std::vector<ParamSpec>& own) {
  MethodInfo info;
  info.name = std::move(name);
  const std::vector<ParamSpec> common = {
      method_param("keys", {"rms", "mean", "max", kPursuit}, "a method that selects tokens (h2o)",
                   takes_selecting,
                   "which tokens are kept: the largest root mean square, mean or maximum over "
                   "reference queries of the softmax over the middle; orthogonal matching pursuit "
                   "of their masses; or those that another method selects (keys=h2o takes "
                   "h2o.heavy_ratio and so on)"),
      choice_param("weights", {"fitted", "one"},
                   "weights by bounded least squares on the masses of the reference queries, in "
                   "both sums (a float32 a token); or 1"),
      real_param("w_min", "1", 0, 1e6, "",
                 "least weight; 1: a token stands for itself at least; exp(-3) is the paper's"),
      real_param("w_max", "20.085536923187668", 0, 1e6, "", "largest weight; exp(3)"),
      choice_param("values", {"fitted", "kept"},
                   "values by ridge least squares on the outputs of the reference queries; or as "
                   "they are"),
      real_param("ridge", "0.01", 0, 1e6, "mean diagonal of X'X",
                 "pull of fitted values towards the kept ones; larger trusts the reference queries "
                 "less; 0 (the paper's) of all best values takes the nearest, slowly"),
      method_param("heads", {kEqual}, "a method that shares its budget over heads (adakv)",
                   takes_sharing,
                   "tokens per head: all alike, or as that method shares a layer's or all layers' "
                   "bytes (heads=adakv takes adakv.floor and so on); with a budget only"),
  };
  info.params = joined({size_params(), common, own});
  info.facts = matching_facts;
  info.copies = 2;
  info.fits_to_keys = true;
  return {std::move(info), compress, nullptr, survey, share};
}

Index matching_bytes(const Params& params, const LayerFacts& layer, Index queries, Index kept) {
  const Index side = std::min(queries, kept);
  Index cells = queries * kept * (kept > queries ? 3 : 1) + 5 * side * side;
  if (params.real("ridge") == 0.0) {
    cells = std::max(cells, 4 * (queries + kept) * kept + 2 * side * side);
  }
  if (params.text("keys") == kPursuit) {
    cells = std::max(cells, queries * (layer.n + 2 * kept) + kept * kept);
  }
  return 8 * (cells + queries * (layer.d + 2 * layer.dv));
}

std::string matching_book_key(const Params& params) {
  return fmt::format("attention-matching {} {} {}", params.text("ref"), params.text("ref_queries"),
                     score_of(params.text("keys")) ? params.text("keys") : "no score");
}

Compressed match_attention(const Task& task, const Params& params,
                           const std::function<MatrixD()>& reference, const std::string& book_key) {
  const bool weighted = params.text("weights") == "fitted";
  const bool valued = params.text("values") == "fitted";
  Task own = task;
  if (task.share != nullptr) {
    own.budget_bytes = task.share->tokens * task.head.pair_bytes();
  }
  const Index count =
      tokens_to_keep(own, params, task.head.pair_bytes() + (weighted ? kWeightBytes : 0));
  Compressed out;
  if (count == 0) {
    return out;
  }
  const ReferenceAttention attention(
      task, reference(), score_of(params.text("keys")).value_or(KeyScore::none), book_key);
  const std::vector<Index> kept = keys_to_keep(task, params, attention, count);
  const std::optional<KvHead> coded = coded_head(task, kept);
  const KvHead& head = coded ? *coded : task.head;
  Fit fit;
  fit.weights.assign(kept.size(), 1.0F);
  if (weighted) {
    fit_weights(task, head, params, attention, kept, fit);
    out.aux_bytes = kWeightBytes * static_cast<Index>(kept.size());
  }
  if (valued) {
    fit_values(task, head, params, attention, kept, fit);
    out.made.k = copy_rows(task.head.k, kept);
    out.made.v = std::move(fit.values);
    out.made.positions = kept;
  } else {
    out.held.tokens = kept;
  }
  if (weighted) {
    (valued ? out.made.weights : out.held.weights) = std::move(fit.weights);
  }
  out.diag = std::move(fit.diag);
  return out;
}

}  // namespace kvbench
