// The list of methods (methods.inc).
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// All methods, in the order of methods.inc. The first call throws std::logic_error on a duplicate
/// name or a method without family.
std::span<const Method> methods();

/// Throws InputError listing all names.
const Method& find_method(std::string_view name);

}  // namespace kvbench
