// OUT.csv: one row per (trace, prompt, layer, query head, algorithm, parameters, seed).
// Its columns are declared in report/columns.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/parse_number.hpp"
#include "core/types.hpp"
#include "report/columns.hpp"

namespace kvbench {

/// The initial value of a field: 0 or empty, but NaN for real numbers, so that a figure that was
/// not measured does not look like a measured 0.
template <class T>
constexpr T unset() {
  if constexpr (std::is_same_v<T, double>) {
    return std::numeric_limits<double>::quiet_NaN();
  } else {
    return T{};
  }
}

/// One row: a field per column. Byte counts are of the whole cache (sinks, middle, recent) of the
/// KV head that serves the row.
struct Row {
#define KVBENCH_FIELD(type, name, ...) type name = unset<type>();
  KVBENCH_COLUMNS(KVBENCH_FIELD)
#undef KVBENCH_FIELD

  Row() : schema(schema_version) {}
};

/// Copies the members of `figures` that have a column's name into that column.
template <class Figures>
void fill(Row& row, const Figures& figures) {
#define KVBENCH_FILL(type, name, ...)         \
  if constexpr (requires { figures.name; }) { \
    row.name = figures.name;                  \
  }
  KVBENCH_COLUMNS(KVBENCH_FILL)
#undef KVBENCH_FILL
}

/// The documentation of a column. All views point to static storage.
struct ColumnDoc {
  std::string_view name;
  std::string_view unit;  ///< "" for names and text
  std::string_view doc;   ///< one line of Markdown
};

/// A column of OUT.csv.
struct Column : ColumnDoc {
  std::string_view missing;                   ///< when the field is empty
  bool key = false;                           ///< part of the row's identity
  bool timing = false;                        ///< differs between runs of the same plan
  bool measured = false;                      ///< empty when the status is infeasible or failed
  bool number = false;                        ///< fields are numbers, not text
  std::string (*text)(const Row&) = nullptr;  ///< the unquoted CSV field
};

/// All columns, in file order.
std::span<const Column> columns();

/// Column names, in file order: the header of a result file.
const std::vector<std::string>& schema_header();

/// Names of the columns that identify a row, in file order.
std::vector<std::string_view> key_columns();

/// Position of a column. Throws InputError for an unknown name.
std::size_t column_index(std::string_view name);

/// The row's fields in column order, unquoted. Measured columns of an infeasible or failed row are
/// empty.
std::vector<std::string> to_fields(const Row& row);

/// A version up to its first dot.
std::string_view major_of(std::string_view version);

/// Shortest text that reads back as the same double; `inf`, `-inf`, `nan`. Never locale-dependent.
std::string number_text(double value);

/// The unquoted field of a value, the same in all tables; an empty optional is an empty field.
template <class T>
std::string field_text(const T& value) {
  if constexpr (std::is_convertible_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, double>) {
    return number_text(value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? field_text(*value) : std::string();
  } else {
    static_assert(std::is_integral_v<T>);
    return std::to_string(value);
  }
}

/// A status without its reason: "ok", "degenerate", "infeasible" or "failed" if it is valid.
std::string_view status_kind(std::string_view status);

/// Status of the rows of a job that got no memory. A resumed run computes it again.
inline constexpr const char* kLackedMemory = "failed: memory";

/// Splits canonical `key=value;key=value` (params, diag). A part without `=` gets an empty value.
std::vector<std::pair<std::string, std::string>> split_params(std::string_view params);

}  // namespace kvbench
