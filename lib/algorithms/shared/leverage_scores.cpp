#include "algorithms/shared/leverage_scores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attention/cholesky.hpp"
#include "core/error.hpp"
#include "core/rope.hpp"

namespace kvbench {
namespace {

constexpr double kRidge = 1e-2;  // [2]'s, absolute
constexpr Index kBlock = 512;    // rows solved for at once

MatrixD sketched(const MatrixD& rows, Index columns, const RngStream& normals) {
  MatrixD projection(rows.cols(), columns);
  const double scale = 1.0 / std::sqrt(static_cast<double>(columns));
  for (Index i = 0; i < rows.cols() * columns; ++i) {
    projection.data()[i] = scale * normals.normal(static_cast<std::uint64_t>(i));
  }
  MatrixD out;
  inner_products(rows, projection, out);
  return out;
}

}  // namespace

ParamSpec sketch_param() {
  return integer_param("sketch", "48", 0, 4096, "columns",
                       "width of the Gaussian sketch that keys are multiplied by; more are closer "
                       "to exact leverage, and slower; 0: exact, nothing is drawn");
}

bool draws_sketch(const Params& params) {
  return params.integer("sketch") > 0;
}

Index leverage_bytes(const Params& params, const LayerFacts& layer, Index /*kept*/) {
  const Index width = draws_sketch(params) ? params.integer("sketch") : layer.d;
  // Twice: keys with their transpose, the Gram matrix with its factor, a block with its solution.
  const Index bytes = 8 * (2 * (layer.n + width + kBlock) + layer.d) * width;
  return bytes + bytes / 8;  // blocks that Eigen packs, and what malloc gives beyond
}

std::map<std::string, std::string> require_rope_tables(const Params& params,
                                                       const LayerFacts& layer) {
  if (layer.rope_positions == 0) {
    throw InputError(
        fmt::format("{}: needs the trace's rotary tables (/rope) to un-rotate keys, which this "
                    "layer does not have; expected a trace dumped with them",
                    params.method()));
  }
  if (layer.rope_positions < layer.n) {
    throw InputError(
        fmt::format("{}: the rotary tables hold {} positions, expected at least the layer's {}",
                    params.method(), layer.rope_positions, layer.n));
  }
  return {};
}

MatrixD ridge_factor(const MatrixD& gram, double ridge) {
  // Terminates: a ridge above all entries makes the diagonal dominant.
  for (;; ridge *= 10.0) {
    MatrixD raised = gram;
    for (Index i = 0; i < gram.rows(); ++i) {
      raised.row(i)[i] += ridge;
    }
    if (factor_cholesky(raised)) {
      return raised;
    }
  }
}

std::vector<double> inverse_forms(const MatrixD& upper, const MatrixD& rows) {
  std::vector<double> out;
  MatrixD block;
  MatrixD columns;
  for (Index b = 0; b < rows.rows(); b += kBlock) {
    const Index count = std::min(kBlock, rows.rows() - b);
    block.resize(count, rows.cols());
    std::copy_n(rows.row(b), count * rows.cols(), block.data());
    transpose(block, columns);
    solve_lower(upper, columns);  // |U'^-1 x|^2
    const auto first = out.size();
    out.resize(first + count, 0.0);
    for (Index t = 0; t < columns.rows(); ++t) {
      for (Index i = 0; i < count; ++i) {
        out[first + i] = std::fma(columns.row(t)[i], columns.row(t)[i], out[first + i]);
      }
    }
  }
  return out;
}

std::vector<double> leverage_scores(MatrixD keys, Index sketch, const RngStream& normals) {
  if (keys.rows() == 0) {
    return {};
  }
  center_rows(keys);
  const MatrixD rows = sketch > 0 ? sketched(keys, sketch, normals) : std::move(keys);
  MatrixD rows_t;
  MatrixD gram;
  transpose(rows, rows_t);
  inner_products(rows_t, rows, gram, true);
  return inverse_forms(ridge_factor(gram, kRidge), rows);
}

std::vector<double> leverage_scores(const Task& task, std::span<const Index> tokens,
                                    const Params& params) {
  MatrixD keys(static_cast<Index>(tokens.size()), task.head.d());
  for (Index i = 0; i < keys.rows(); ++i) {
    const std::span<const float> key = task.head.k.view().row_span(tokens[i]);
    unrotate(*task.rope, tokens[i], key, {keys.row(i), key.size()});
  }
  return leverage_scores(std::move(keys), params.integer("sketch"), task.rng.stream("sketch"));
}

}  // namespace kvbench
