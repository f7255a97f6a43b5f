// What quantizers share: keys un-rotated before they are coded, and how far codes are off.
#pragma once

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
/// |made - exact|_F^2 / |exact|_F^2 times 4^bits, likewise: the same for all numbers of bits where
/// the error halves with each.
std::string code_distortion(MatrixView made, MatrixView exact, int bits);

}  // namespace kvbench
