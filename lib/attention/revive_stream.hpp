// A stream in which every step attends all tokens, those that a count sketch holds as they are
// rebuilt from it, and accumulated attention decides what the sketch holds. What is decided depends
// on keys, queries and the sketch of the keys alone: it can be found first, and followed later with
// the values.
//
// Tokens are inserted into Recent, a queue. Where it exceeds `recent + slack`, its oldest become
// Candidates until `recent` are left. While there are more than `candidates` of them, the one of
// lowest score (of equals the highest position) goes to Vague, the sketch. Then, while the lowest
// Candidate's score times `replace_rate` is below the highest Vague score (of equals the lowest
// position), the two change places, and the one that comes back is what was estimated.
#pragma once

#include <span>
#include <vector>

#include "attention/scores.hpp"
#include "attention/sketch_cells.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Position `position` arrives. With `has_query` the group's queries there attend all positions
/// 0 .. position, and what each receives, reduced over the group, is added to its score in float32.
/// Then `insert`, unless it is -1, is put into Recent.
struct ReviveStep {
  Index position;
  Index insert;  ///< <= position
  bool has_query;
};

struct ReviveRules {
  std::span<const ReviveStep> steps;  ///< positions ascending, and so are the inserted tokens
  Index recent = 0;                   ///< tokens
  Index slack = 0;                    ///< tokens
  Index candidates = 0;               ///< tokens
  double replace_rate = 1.0;          ///< >= 1
  Reduce reduce = Reduce::mean;
  std::span<const SketchHash> hashes;  ///< one per row of the sketch, 1 .. kMaxSketchRows
  Index cells = 1;                     ///< per row, >= 1
  DType dtype = DType::float32;        ///< of the cells' elements
  CellEstimate estimate = CellEstimate::sum;
};

/// A Candidate goes to Vague; where `in` is not -1, that Vague token takes its place.
struct ReviveMove {
  Index cause;  ///< the token whose insertion led to it
  Index out;
  Index in;
  friend bool operator==(const ReviveMove&, const ReviveMove&) = default;
};

struct ReviveLog {
  std::vector<ReviveMove> moves;  ///< in the order in which they happen
  std::vector<float> scores;      ///< [n] after the last step
};

}  // namespace kvbench
