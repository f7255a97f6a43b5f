// Least squares within bounds and with a ridge, by their definitions in long double.
#pragma once

#include "reference/reference.hpp"

namespace reference {

/// x of A x = b by elimination with full pivoting; unknowns whose pivot is below 1e-13 of the
/// largest are 0.
Vec eliminate(Rows a, Vec b);

/// |E w - y|^2.
Real misfit(const Rows& e, const Vec& y, const Vec& w);

/// By how much w violates the optimality conditions of min |E w - y|^2, low <= w <= high, in units
/// of |column| |y|: the gradient of a weight at `low` may not be negative, at `high` not positive,
/// between (more than `near` from both) not anything but 0.
Real violation(const Rows& e, const Vec& y, const Vec& w, Real low, Real high, Real near);

/// argmin |E w - y|^2, low <= w <= high: Stark and Parker's active-set method (1995). All weights
/// start at `low`; the one that most wants to leave its bound is freed; the free ones move to their
/// least squares solution, or as far as the first bound on the way.
Vec bounded_fit(const Rows& e, const Vec& y, Real low, Real high);

/// (X'X + r) D = X'T by its normal equations, column by column.
Rows ridge(const Rows& x, const Rows& t, Real r);

/// Orthogonal matching pursuit, step by step: numbers of `count` columns in the order chosen.
std::vector<Index> pursuit(const Rows& e, const Vec& y, Index count, Real low, Real high);

}  // namespace reference
