#include "report/queries.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "report/schema.hpp"

namespace kvbench {

const SideTable& queries_table() {
  constexpr std::array<std::string_view, 2> own = {"offset", "rel_error"};
  static const SideTable table = [&] {
    std::vector<std::string_view> joined = key_columns();
    joined.insert(joined.begin(), "schema");
    return SideTable("queries", joined, own);
  }();
  return table;
}

Fields query_fields(std::span<const std::string> row, Index position, Index offset,
                    double rel_error) {
  const std::array<std::string, 2> own = {fmt::format("{}", offset), number_text(rel_error)};
  return queries_table().line(row, position, own);
}

}  // namespace kvbench
