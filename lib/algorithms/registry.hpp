// The list of methods. Adding one: a line in methods.inc.
#pragma once

#include <span>
#include <string_view>

#include "algorithms/contract.hpp"

namespace kvbench {

/// All methods in the order of methods.inc. Throws std::logic_error once on a duplicate
/// name, and where one does not state its scratch or its family.
std::span<const Method> methods();

/// Errors: InputError listing all names.
const Method& find_method(std::string_view name);

}  // namespace kvbench
