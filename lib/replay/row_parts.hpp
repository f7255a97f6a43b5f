// What the jobs of both protocols share: a row's parts, and how a method's result enters the sums.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <vector>

#include "attention/estimator.hpp"
#include "metrics/amnesia.hpp"
#include "metrics/error.hpp"
#include "metrics/memory.hpp"
#include "replay/job.hpp"

namespace kvbench {

/// A row with its key and descriptive columns; nothing measured yet.
Row blank_row(const Plan& plan, const Unit& unit, const Entry& entry, Index q_head);
inline Row blank_row(const HeadInput& c, const Entry& entry, Index q_head) {
  return blank_row(c.plan(), c.unit(), entry, q_head);
}

/// What else than a method's own word makes a measured row no fair measurement; or empty.
std::string unfair(const HeadInput& c, const Entry& entry, bool empty_middle);

/// Memory columns but for peak_bytes, which is the protocol's.
void fill(Row& row, const MemoryFigures& figures);
void fill(Row& row, const ErrorFigures& figures);
void fill(Row& row, const HeldFigures& figures);

/// Status of a measured row: `degenerate` of the row's m queries had no denominator; `reason`: what
/// else makes the row no fair measurement, or empty.
std::string status_of(const ErrorFigures& errors, Index degenerate, Index m,
                      const std::string& reason);
/// `infeasible: why` or `failed: why`, on one line.
std::string status_of_error(const std::exception& error);

/// The `diag` column: the method's own figures; and, where the trace holds fewer queries to score
/// with than the method asks for, how many it asks for.
std::string diag_text(const HeadInput& c, const Entry& entry, const Compressed& result);

/// What is held, for memory_figures.
Holding holding_of(const Compressed& c);

/// What a method holds as pieces of sums, numerator and denominator; all of them, also empty ones.
/// `first`: 0, 1, ..., at least as many as there are made tokens. The pieces point into all three.
std::vector<SumPiece> pieces_of(const KvHead& head, const Compressed& c,
                                std::span<const Index> first);

/// Adds what a method holds, numerator and denominator.
void add_compressed(SoftmaxSums& sums, const KvHead& head, const Compressed& c);

}  // namespace kvbench
