// Methods and compositions by name.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// The method of that name, or the composition A+B (composition.hpp) or A@Q (stored.hpp). Throws
/// InputError as find_method() and these. Thread-safe.
const Method& find_algorithm(const std::string& name);

}  // namespace kvbench
