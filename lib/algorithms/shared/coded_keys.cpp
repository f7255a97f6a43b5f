#include "algorithms/shared/coded_keys.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/error.hpp"
#include "core/rope.hpp"

namespace kvbench {

ParamSpec coded_keys_param() {
  return choice_param("keys", {"post", "pre"},
                      "keys are coded as the trace holds them; or un-rotated by its rotary tables, "
                      "coded, and rotated back");
}

bool codes_unrotated(const Params& params) {
  return params.text("keys") == "pre";
}

void require_tables_for_keys(const Params& params, const LayerFacts& layer) {
  if (!codes_unrotated(params)) {
    return;
  }
  if (layer.rope_positions == 0) {
    throw InputError(fmt::format(
        "{}: keys=pre needs the trace's rotary tables (/rope), which this layer does not have; "
        "expected keys=post, or a trace dumped with them",
        params.method()));
  }
  if (layer.rope_positions < layer.n) {
    throw InputError(fmt::format("{}: the rotary tables hold {} positions, expected at least {}",
                                 params.method(), layer.rope_positions, layer.n));
  }
}

Matrix unrotated(const RopeTables& tables, MatrixView keys, std::span<const Index> positions) {
  Matrix out(keys.rows, keys.cols);
  std::vector<double> row(keys.cols);
  for (Index i = 0; i < keys.rows; ++i) {
    unrotate(tables, positions[i], keys.row_span(i), row);
    for (Index c = 0; c < keys.cols; ++c) {
      out.row(i)[c] = static_cast<float>(row[c]);
    }
  }
  return out;
}

Matrix rotated(const RopeTables& tables, MatrixView keys, std::span<const Index> positions) {
  Matrix out(keys.rows, keys.cols);
  for (Index i = 0; i < keys.rows; ++i) {
    const std::vector<double> row(keys.row(i), keys.row(i) + keys.cols);
    rotate(tables, positions[i], row, {out.row(i), row.size()});
  }
  return out;
}

namespace {

// Squared, relative.
double squared_error(MatrixView made, MatrixView exact) {
  double error = 0.0;
  double norm = 0.0;
  for (Index i = 0; i < exact.rows * exact.cols; ++i) {
    const auto x = static_cast<double>(exact.data[i]);
    const double e = static_cast<double>(made.data[i]) - x;
    error = std::fma(e, e, error);
    norm = std::fma(x, x, norm);
  }
  return error == 0.0 ? 0.0 : error / norm;
}

}  // namespace

std::string code_error(MatrixView made, MatrixView exact) {
  return fmt::format("{:.6g}", std::sqrt(squared_error(made, exact)));
}

std::string code_distortion(MatrixView made, MatrixView exact, int bits) {
  return fmt::format("{:.6g}", std::ldexp(squared_error(made, exact), 2 * bits));
}

}  // namespace kvbench
