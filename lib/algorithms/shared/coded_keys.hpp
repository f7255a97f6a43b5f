// What quantizers share: keys un-rotated before they are coded, and how far codes are off.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// The parameter `keys`: `post` codes keys as the trace holds them, `pre` un-rotates them by the
/// trace's rotary tables, codes, and rotates back (KVQuant, arXiv:2401.18079, section 3.2).
ParamSpec coded_keys_param();
bool codes_unrotated(const Params& params);

/// Throws InputError where keys=pre and the layer has no rotary tables, or too short ones.
void require_tables_for_keys(const Params& params, const LayerFacts& layer);

/// Keys [c, d] before their rotation at `positions` [c], in float32.
Matrix unrotated(const RopeTables& tables, MatrixView keys, std::span<const Index> positions);
/// The same rotated again.
Matrix rotated(const RopeTables& tables, MatrixView keys, std::span<const Index> positions);

/// |made - exact|_F / |exact|_F as text with six digits, for `diag`; 0 where nothing differs.
std::string code_error(MatrixView made, MatrixView exact);
/// Of row i of `made` against row rows[i] of `exact`.
std::string code_error(MatrixView made, MatrixView exact, std::span<const Index> rows);

/// Keys and values of these tokens, to be coded.
KeptEntries entries_of(const KvHead& head, std::span<const Index> tokens);

/// What keys and values were before they were coded: rows `at` of the matrices, or all in order.
struct ExactEntries {
  MatrixView k;
  MatrixView v;
  std::span<const Index> at = {};
};

/// For `diag`: k_error, v_error (code_error) and k_distortion, v_distortion, their squares times
/// 4^bits: the same for all numbers of bits where an error halves with each.
Figures code_figures(const CodedEntries& coded, const ExactEntries& exact, int k_bits, int v_bits);

/// For MethodInfo::scratch_bytes of what codes `middle` tokens in place: the entries and their
/// positions, and with keys=pre the keys twice.
Index coded_entries_bytes(const Params& params, const LayerFacts& layer, Index middle);

}  // namespace kvbench
