// What the plans of replay and cluster check alike: options, and which prompts, layers and heads of
// the traces are meant.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace kvbench {

/// Throws InputError(message) unless `good`.
inline void check_input(bool good, const std::string& message) {
  if (!good) {
    throw InputError(message);
  }
}

/// Whether `x` is among the wanted; nothing wanted means all.
template <class T>
bool chosen(const std::vector<T>& wanted, const T& x) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), x) != wanted.end();
}

/// Every wanted thing must exist in some trace: a typo in --layers is no empty result. Throws
/// InputError.
template <class T>
void check_found(const char* option, const std::vector<T>& wanted, const std::set<T>& there) {
  for (const T& x : wanted) {
    check_input(there.count(x) > 0, fmt::format("{}: no trace has {}, expected some of {}", option,
                                                x, fmt::join(there, ", ")));
  }
}

}  // namespace kvbench
