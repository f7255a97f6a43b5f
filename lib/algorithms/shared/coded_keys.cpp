#include "algorithms/shared/coded_keys.hpp"

#include <fmt/format.h>

#include <cmath>

#include "algorithms/shared/size.hpp"
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

// Squared relative error.
double squared_error(MatrixView made, MatrixView exact, std::span<const Index> rows) {
  double error = 0.0;
  double norm = 0.0;
  for (Index i = 0; i < made.rows; ++i) {
    const float* from = exact.row(rows.empty() ? i : rows[i]);
    for (Index c = 0; c < made.cols; ++c) {
      const auto x = static_cast<double>(from[c]);
      const double e = static_cast<double>(made.row(i)[c]) - x;
      error = std::fma(e, e, error);
      norm = std::fma(x, x, norm);
    }
  }
  return error == 0.0 ? 0.0 : error / norm;
}

}  // namespace

std::string code_error(MatrixView made, MatrixView exact, std::span<const Index> rows) {
  return fmt::format("{:.6g}", std::sqrt(squared_error(made, exact, rows)));
}

Figures code_figures(const CodedEntries& coded, const ExactEntries& exact, int k_bits, int v_bits) {
  const double k = squared_error(coded.k, exact.k, exact.at);
  const double v = squared_error(coded.v, exact.v, exact.at);
  const auto text = [](double x) { return fmt::format("{:.6g}", x); };
  return {{"k_error", text(std::sqrt(k))},
          {"v_error", text(std::sqrt(v))},
          {"k_distortion", text(std::ldexp(k, 2 * k_bits))},
          {"v_distortion", text(std::ldexp(v, 2 * v_bits))}};
}

Compressed hold_coded(const KvHead& head, CodedEntries coded, std::span<const Index> positions,
                      std::span<const Index> exact) {
  Compressed out = hold(exact);
  out.payload_bytes = static_cast<Index>(exact.size()) * head.pair_bytes() + coded.bytes.codes;
  out.aux_bytes = coded.bytes.scales;
  out.quantized = coded.k.rows();
  out.made = {std::move(coded.k), std::move(coded.v), {}, {positions.begin(), positions.end()}};
  out.diag = std::move(coded.diag);
  return out;
}

KeptEntries entries_of(const KvHead& head, std::span<const Index> tokens) {
  return {copy_rows(head.k, tokens), copy_rows(head.v, tokens), {tokens.begin(), tokens.end()}};
}

}  // namespace kvbench
