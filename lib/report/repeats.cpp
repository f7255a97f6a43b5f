#include "report/repeats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Keys that are held at a time. Equal hashes of different keys are rare: one round almost always
// finds the row.
constexpr std::size_t kAtOnce = 4096;

struct Place {
  std::string source;
  std::size_t line;
};

}  // namespace

RowKey::RowKey(const SummaryRows& rows) {
  for (const std::string_view name : key_columns()) {
    at_.push_back(rows.column(name));
  }
}

std::string RowKey::of(const SummaryRows& rows) const {
  std::string key;
  for (const std::size_t at : at_) {
    append_to_key(key, rows.cell(at));
  }
  return key;
}

std::string RowKey::text(const SummaryRows& rows) const {
  const std::vector<std::string_view> names = key_columns();
  std::string text;
  for (std::size_t i = 0; i < at_.size(); ++i) {
    text += fmt::format("{}{}={}", i == 0 ? "" : ", ", names[i], rows.cell(at_[i]));
  }
  return text;
}

void check_repeats(std::span<const ResultTable> tables, std::vector<RowFilter>& filters,
                   std::vector<std::uint64_t> hashes) {
  const std::vector<std::uint64_t> twice = repeated(std::move(hashes));
  for (std::size_t begin = 0; begin < twice.size(); begin += kAtOnce) {
    const auto now = std::span(twice).subspan(begin, std::min(kAtOnce, twice.size() - begin));
    std::unordered_map<std::string, Place> seen;
    for (const ResultTable& table : tables) {
      SummaryRows rows(table, filters);
      const RowKey row_key(rows);
      while (rows.next()) {
        std::string key = row_key.of(rows);
        if (!std::ranges::binary_search(now, hash_of(key))) {
          continue;
        }
        const auto [first, fresh] = seen.emplace(std::move(key), Place{rows.source(), rows.line()});
        if (!fresh) {
          throw InputError(fmt::format("{}: line {}: the row stands twice, also in {}, line {}: {}",
                                       rows.source(), rows.line(), first->second.source,
                                       first->second.line, row_key.text(rows)));
        }
      }
    }
  }
}

}  // namespace kvbench
