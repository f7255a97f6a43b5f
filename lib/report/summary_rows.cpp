#include "report/summary_rows.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "report/manifest.hpp"
#include "report/run_tables.hpp"

namespace kvbench {

ResultTable result_table(const std::filesystem::path& csv) {
  ResultTable out{[csv] { return open_result_table(csv); }};
  if (std::filesystem::exists(manifest_path(csv))) {
    const Manifest manifest = read_manifest(csv);
    const auto precision = manifest.configuration.find("precision");
    const bool known = precision != manifest.configuration.end() && precision->is_string();
    for (const TraceFile& trace : manifest.traces) {
      out.origins.emplace(std::filesystem::path(trace.path).filename().string(),
                          Origins::mapped_type{trace.model, trace.dtype,
                                               known ? precision->get<std::string>() : ""});
    }
  }
  return out;
}

SummaryRows::SummaryRows(const ResultTable& table, std::vector<RowFilter>& filters)
    : origins_(table.origins), table_(table.open()), filters_(filters), trace_at_(column("trace")) {
  for (const RowFilter& filter : filters_) {
    filter_at_.push_back(column(filter.column()));
  }
}

std::size_t SummaryRows::column(std::string_view name) const {
  const Fields& header = table_->header();
  const auto own = std::ranges::find(header, name);
  if (own != header.end()) {
    return static_cast<std::size_t>(own - header.begin());
  }
  const auto added = std::ranges::find(kManifestColumns, name);
  if (added == kManifestColumns.end()) {
    throw InputError(fmt::format("{}: column `{}`{} is missing; there are {}, {}", source(), name,
                                 did_you_mean(name, header), fmt::join(header, ", "),
                                 fmt::join(kManifestColumns, ", ")));
  }
  return header.size() + static_cast<std::size_t>(added - kManifestColumns.begin());
}

const std::string& SummaryRows::cell(std::size_t column) const {
  const Fields& row = table_->row();
  if (column < row.size()) {
    return row[column];
  }
  const auto origin = origins_.find(row[trace_at_]);
  return (origin == origins_.end() ? nothing_ : origin->second)[column - row.size()];
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
