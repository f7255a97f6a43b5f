#include "report/layers.hpp"

#include <array>
#include <vector>

#include "report/schema.hpp"

namespace kvbench {

const SideTable& layers_table() {
  constexpr std::array<std::string_view, 2> own = {"out_rel_error", "residual_rel_error"};
  static const SideTable table = [&] {
    std::vector<std::string_view> joined = key_columns();
    std::erase(joined, "q_head");
    std::erase(joined, "kv_head");
    joined.insert(joined.begin(), "schema");
    return SideTable("layers", joined, own, /*steps=*/false);
  }();
  return table;
}

Fields layer_fields(std::span<const std::string> row, double out_rel_error,
                    std::optional<double> residual_rel_error) {
  const std::array<std::string, 2> own = {
      number_text(out_rel_error), residual_rel_error ? number_text(*residual_rel_error) : ""};
  return layers_table().line(row, 0, own);
}

}  // namespace kvbench
