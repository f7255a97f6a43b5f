#include "report/steps.hpp"

#include <fmt/format.h>

#include <array>

#include "report/schema.hpp"

namespace kvbench {

const SideTable& steps_table() {
  constexpr std::array<std::string_view, 2> own = {"rel_error", "bytes"};
  static const SideTable table("steps", key_columns(), own);
  return table;
}

Fields step_fields(std::span<const std::string> row, const Step& step) {
  const std::array<std::string, 2> own = {number_text(step.rel_error),
                                          fmt::format("{}", step.bytes)};
  return steps_table().line(row, step.position, own);
}

}  // namespace kvbench
