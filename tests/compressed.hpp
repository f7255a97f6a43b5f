// What a method returned, read for tests: its own figures and its weights.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "algorithms/contract.hpp"

namespace kvbench {

/// A figure of the method's own, as text; a failure where it gives none of that name.
inline std::string diag_text(const Compressed& c, const std::string& key) {
  for (const auto& [name, value] : c.diag) {
    if (name == key) {
      return value;
    }
  }
  ADD_FAILURE() << "no figure " << key;
  return "";
}

/// The same as a number; NaN where there is none.
inline double diag_number(const Compressed& c, const std::string& key) {
  const std::string text = diag_text(c, key);
  return text.empty() ? std::numeric_limits<double>::quiet_NaN() : std::stod(text);
}

inline double weight_sum(const HeldTokens& held) {
  double sum = 0.0;
  for (std::size_t i = 0; i < held.tokens.size(); ++i) {
    sum += static_cast<double>(held.weight(i));
  }
  return sum;
}

}  // namespace kvbench
