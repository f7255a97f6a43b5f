#include "report/result_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Keys in memory at a time. Different keys rarely share a hash, so one round almost always finds
// the row.
constexpr std::size_t kKeysAtOnce = 4096;

}  // namespace

ResultTable result_table(const std::filesystem::path& csv) {
  return [csv] { return open_result_table(csv); };
}

ResultRows::ResultRows(const ResultTable& table, std::vector<RowFilter>& filters)
    : table_(table()), filters_(filters) {
  for (const RowFilter& filter : filters_) {
    filter_at_.push_back(column(filter.column()));
  }
  for (const std::string_view name : key_columns()) {
    key_at_.push_back(column(name));
  }
}

std::string ResultRows::key_text() const {
  std::string text;
  for (const std::size_t at : key_at_) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", table_->header()[at], cell(at));
  }
  return text;
}

bool ResultRows::next() {
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

void check_duplicates(std::span<const ResultTable> tables, std::vector<RowFilter>& filters,
                      std::vector<std::uint64_t> hashes) {
  const std::vector<std::uint64_t> twice = repeated(std::move(hashes));
  for (std::size_t begin = 0; begin < twice.size(); begin += kKeysAtOnce) {
    const auto now = std::span(twice).subspan(begin, std::min(kKeysAtOnce, twice.size() - begin));
    std::unordered_map<std::string, std::pair<std::string, std::size_t>> seen;  // source and line
    for (const ResultTable& table : tables) {
      for (ResultRows rows(table, filters); rows.next();) {
        std::string key = rows.key();
        if (!std::ranges::binary_search(now, hash_of(key))) {
          continue;
        }
        const auto [first, fresh] =
            seen.emplace(std::move(key), std::pair{rows.source(), rows.line()});
        if (!fresh) {
          throw InputError(fmt::format("{}: line {}: duplicate row, also in {}, line {}: {}",
                                       rows.source(), rows.line(), first->second.first,
                                       first->second.second, rows.key_text()));
        }
      }
    }
  }
}

}  // namespace kvbench
