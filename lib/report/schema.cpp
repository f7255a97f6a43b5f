#include "report/schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "core/error.hpp"

namespace kvbench {
namespace {

enum class Kind { plain, key, measured, timing };

template <auto Member>
constexpr Column column(ColumnDoc doc, Kind kind, std::string_view missing) {
  const bool measured = kind == Kind::measured || kind == Kind::timing;
  return {doc,
          !missing.empty() ? missing
          : measured       ? "not measured"
                           : "never",
          kind == Kind::key,
          kind == Kind::timing,
          measured,
          !std::is_same_v<std::remove_cvref_t<decltype(Row().*Member)>, std::string>,
          [](const Row& row) { return field_text(row.*Member); }};
}

constexpr std::array kColumns{
#define KVBENCH_COLUMN(type, name, unit, kind, missing, doc) \
  column<&Row::name>({#name, unit, doc}, Kind::kind, missing),
    KVBENCH_COLUMNS(KVBENCH_COLUMN)
#undef KVBENCH_COLUMN
};

}  // namespace

std::span<const Column> columns() {
  return kColumns;
}

const std::vector<std::string>& schema_header() {
  static const std::vector<std::string> header = [] {
    std::vector<std::string> names;
    for (const Column& c : kColumns) {
      names.emplace_back(c.name);
    }
    return names;
  }();
  return header;
}

std::vector<std::string_view> key_columns() {
  std::vector<std::string_view> names;
  for (const Column& c : kColumns) {
    if (c.key) {
      names.push_back(c.name);
    }
  }
  return names;
}

std::size_t column_index(std::string_view name) {
  const auto it = std::ranges::find(kColumns, name, &Column::name);
  if (it == kColumns.end()) {
    throw InputError(fmt::format("schema {}: no column `{}`", schema_version, name));
  }
  return static_cast<std::size_t>(it - kColumns.begin());
}

std::vector<std::string> to_fields(const Row& row) {
  const std::string_view kind = status_kind(row.status);
  const bool blank = kind == "infeasible" || kind == "failed";
  std::vector<std::string> fields;
  fields.reserve(kColumns.size());
  for (const Column& c : kColumns) {
    fields.push_back(blank && c.measured ? std::string() : c.text(row));
  }
  return fields;
}

std::string_view major_of(std::string_view version) {
  return version.substr(0, version.find('.'));
}

std::string number_text(double value) {
  // fmt writes -nan for a negative NaN; the sign of a NaN means nothing.
  return value != value ? "nan" : fmt::format("{}", value);
}

std::string_view status_kind(std::string_view status) {
  return status.substr(0, status.find(':'));
}

std::vector<std::pair<std::string, std::string>> split_params(std::string_view params) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!params.empty()) {
    const std::size_t end = params.find(';');
    const std::string_view part = params.substr(0, end);
    if (!part.empty()) {
      const std::size_t eq = part.find('=');
      out.emplace_back(part.substr(0, eq),
                       eq == std::string_view::npos ? std::string_view() : part.substr(eq + 1));
    }
    params = end == std::string_view::npos ? std::string_view() : params.substr(end + 1);
  }
  return out;
}

}  // namespace kvbench
