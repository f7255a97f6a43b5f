// The refusal of wrong input.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.hpp"

namespace kvbench::testing_replay {

/// The one line with which `act` refuses; a failure where it does not.
inline std::string refusal(const std::function<void()>& act, const std::string& what = "") {
  try {
    act();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "accepted, expected a refusal" << (what.empty() ? "" : ": ") << what;
  return "";
}

/// `act` is refused by a line that says `part`, and `more`.
template <class... More>
void expect_refusal(const std::function<void()>& act, const std::string& part,
                    const More&... more) {
  const std::string message = refusal(act, part);
  for (const std::string& said : {part, std::string(more)...}) {
    EXPECT_NE(message.find(said), std::string::npos) << "no \"" << said << "\" in: " << message;
  }
}

}  // namespace kvbench::testing_replay
