// From `--algorithm NAME[:key=v1,v2,..;key=a:b:step]` to variants: every combination of the listed
// values, each a method with all of its parameters resolved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// A method with one set of parameters.
struct Variant {
  const Method* method = nullptr;
  Params params;

  /// Whether its own parameters fix its size, or it has one size only: no budget applies.
  bool sized() const;
};

/// Expands specs into variants in canonical order: the registry's order, then the parameters by
/// value. The order and repetition of `specs` do not matter. "all" stands for every method.
/// Ranges a:b:step include b where a step lands on it (to 1e-9 of a step); a:b steps by 1.
/// Errors: InputError naming the spec and what was expected.
std::vector<Variant> expand_algorithms(const std::vector<std::string>& specs);

/// "10" -> 0..9; "3:10" -> 3..9; "1,5,9" as listed. Errors: InputError.
std::vector<std::uint64_t> parse_seeds(const std::string& text);

}  // namespace kvbench
