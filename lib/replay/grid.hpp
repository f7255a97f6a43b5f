// From `--algorithm NAME[:key=v1,v2,..;key=a:b:step]` to variants: every combination of the listed
// values, each a method with all of its parameters resolved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"

namespace kvbench {

/// A method, or a composition A+B of two, with one set of parameters.
struct Variant {
  const Method* method = nullptr;
  Params params;
  const Method* rest = nullptr;  ///< B of a composition; `method` is A

  std::string name() const;
  /// Parameters any of which fixes the size.
  const std::vector<std::string>& sizes() const;
  bool random() const;
  bool sees_evaluated() const;
  bool runs_under(const std::string& protocol) const;
  Compressed compress(const Task& task) const;

  /// Whether its own parameters fix its size, or it has one size only: no budget applies.
  bool sized() const;
};

/// Expands specs into variants in canonical order: the registry's order, then the parameters by
/// value. The order and repetition of `specs` do not matter. "all" stands for every method that
/// runs under `protocol` ("prefill" or "stream"); one that does not is refused when named.
/// Ranges a:b:step include b where a step lands on it (to 1e-9 of a step); a:b steps by 1.
/// Errors: InputError naming the spec and what was expected.
std::vector<Variant> expand_algorithms(const std::vector<std::string>& specs,
                                       const std::string& protocol = "prefill");

/// "10" -> 0..9; "3:10" -> 3..9; "1,5,9" as listed. Errors: InputError.
std::vector<std::uint64_t> parse_seeds(const std::string& text);

}  // namespace kvbench
