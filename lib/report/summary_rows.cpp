#include "report/summary_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "report/run_tables.hpp"

namespace kvbench {

ResultTable result_table(const std::filesystem::path& csv) {
  return [csv] { return open_result_table(csv); };
}

SummaryRows::SummaryRows(const ResultTable& table, std::vector<RowFilter>& filters)
    : table_(table()), filters_(filters) {
  for (const RowFilter& filter : filters_) {
    filter_at_.push_back(column(filter.column()));
  }
}

std::size_t SummaryRows::column(std::string_view name) const {
  const Fields& header = table_->header();
  const auto at = std::ranges::find(header, name);
  if (at == header.end() && std::ranges::find(kLaterColumns, name) == kLaterColumns.end()) {
    throw InputError(fmt::format("{}: column `{}`{} is missing; there are {}", source(), name,
                                 did_you_mean(name, header), fmt::join(header, ", ")));
  }
  return static_cast<std::size_t>(at - header.begin());
}

const std::string& SummaryRows::cell(std::size_t column) const {
  const Fields& row = table_->row();
  return column < row.size() ? row[column] : unknown_;
}

bool SummaryRows::next() {
  while (table_->next()) {
    bool kept = true;
    for (std::size_t f = 0; f < filters_.size(); ++f) {
      kept = filters_[f].keeps(cell(filter_at_[f])) && kept;
    }
    if (kept) {
      return true;
    }
  }
  return false;
}

}  // namespace kvbench
