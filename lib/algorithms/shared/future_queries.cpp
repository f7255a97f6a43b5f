#include "algorithms/shared/future_queries.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/rope.hpp"

namespace kvbench {

std::vector<ParamSpec> future_params() {
  ParamSpec rope = choice_param(
      "rope", {"tables", "post"},
      "tables: queries are un-rotated by the trace's rotary tables and rotated to future "
      "positions; post: queries as stored; auto: tables if the trace has them, otherwise post");
  rope.fallback = "auto";
  return {std::move(rope),
          integer_param("n_future", "512", 1, 1e6, "tokens",
                        "rope=tables: positions after the prompt over which rotations are "
                        "averaged; larger looks further ahead"),
          integer_param("n_skip", "4", 0, 1e9, "queries",
                        "first positions whose queries, often outliers, are skipped")};
}

JobFacts future_facts(const Params& params) {
  return {.scoring = {Scoring()}, .rope = params.text("rope") != "post"};
}

std::map<std::string, std::string> resolve_future(const Params& params, const LayerFacts& layer) {
  const std::string rope =
      params.is_auto("rope") ? (layer.rope_positions > 0 ? "tables" : "post") : params.text("rope");
  const Index end = layer.scoring.end + params.integer("n_future");
  if (rope == "tables" && layer.rope_positions == 0) {
    throw InputError(
        fmt::format("{}: rope=tables needs the trace's rotary tables (/rope), which this layer "
                    "does not have; expected rope=post, or a trace dumped with them",
                    params.method()));
  }
  if (rope == "tables" && layer.rope_positions < end) {
    throw InputError(fmt::format(
        "{}: the rotary tables hold {} positions, expected at least {} (the prompt's end and "
        "n_future)",
        params.method(), layer.rope_positions, end));
  }
  return {{"rope", rope}};
}

FutureQueries::FutureQueries(const Task& task, const Params& params)
    : task_(task),
      rope_(params.text("rope") == "post" ? nullptr : task.rope),
      positions_{std::max(task.scoring.begin, params.integer("n_skip")), task.scoring.end} {
  if (rope_ == nullptr) {
    return;
  }
  const Index future = params.integer("n_future");
  cos_.assign(rope_->cos.cols(), 0.0);
  sin_ = cos_;
  for (Index t = 0; t < rope_->cos.cols(); ++t) {
    for (Index p = task.scoring.end; p < task.scoring.end + future; ++p) {
      cos_[t] += static_cast<double>(rope_->cos.row(p)[t]);
      sin_[t] += static_cast<double>(rope_->sin.row(p)[t]);
    }
    cos_[t] /= static_cast<double>(future);
    sin_[t] /= static_cast<double>(future);
  }
}

MatrixD FutureQueries::past(Index g) const {
  const Matrix& queries = task_.head.q[g];
  MatrixD out(positions_.size(), queries.cols());
  for (Index r = 0; r < out.rows(); ++r) {
    const Index position = positions_.begin + r;
    const std::span<const float> from = queries.view().row_span(position - task_.head.q_start());
    if (rope_ != nullptr) {
      unrotate(*rope_, position, from, {out.row(r), from.size()});
    } else {
      std::copy(from.begin(), from.end(), out.row(r));
    }
  }
  return out;
}

void FutureQueries::turn(double* x, Index stride) const {
  for (std::size_t t = 0; t < cos_.size(); ++t) {
    double& a = x[rope_->first(static_cast<Index>(t)) * stride];
    double& b = x[rope_->second(static_cast<Index>(t)) * stride];
    const double turned = cos_[t] * a - sin_[t] * b;
    b = cos_[t] * b + sin_[t] * a;
    a = turned;
  }
}

}  // namespace kvbench
