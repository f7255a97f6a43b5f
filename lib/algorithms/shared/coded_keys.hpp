// Shared by quantizers: un-rotation of keys, and the error of codes.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `keys`. `post` codes keys as the trace has them; `pre` un-rotates them by the
/// trace's rotary tables, codes, and rotates back (KVQuant, arXiv:2401.18079, section 3.2).
ParamSpec coded_keys_param();
bool codes_unrotated(const Params& params);

/// Throws InputError if keys=pre and the layer's rotary tables are missing or too short.
void require_tables_for_keys(const Params& params, const LayerFacts& layer);

/// Keys [c, d] before rotation at `positions` [c], in float32.
Matrix unrotated(const RopeTables& tables, MatrixView keys, std::span<const Index> positions);
Matrix rotated(const RopeTables& tables, MatrixView keys, std::span<const Index> positions);

/// |made - exact|_F / |exact|_F with six digits, for `diag`; 0 if equal. Row i of `made` is
/// compared with row rows[i] of `exact`, or row i if `rows` is empty.
std::string code_error(MatrixView made, MatrixView exact, std::span<const Index> rows = {});

KeptEntries entries_of(const KvHead& head, std::span<const Index> tokens);

/// Coded entries at `positions` (empty: none) and `exact` tokens, all of weight 1.
Compressed hold_coded(const KvHead& head, CodedEntries coded, std::span<const Index> positions,
                      std::span<const Index> exact = {});

/// Keys and values before coding: rows `at` of the matrices, or all if empty.
struct ExactEntries {
  MatrixView k;
  MatrixView v;
  std::span<const Index> at = {};
};

/// For `diag`: k_error and v_error (code_error), and k_distortion and v_distortion, their squares
/// times 4^bits, which are constant in bits if the error halves with each bit.
Figures code_figures(const CodedEntries& coded, const ExactEntries& exact, int k_bits, int v_bits);

}  // namespace kvbench
