#include "report/steps.hpp"

#include <fmt/format.h>

#include <charconv>

#include "core/error.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kOwnColumns = 3;  // step, rel_error, bytes

void check_width(std::span<const std::string> fields) {
  if (fields.size() != steps_header().size()) {
    throw InputError(fmt::format("steps: a row has {} fields, expected {}", fields.size(),
                                 steps_header().size()));
  }
}

}  // namespace

std::filesystem::path steps_path(const std::filesystem::path& csv) {
  std::filesystem::path out = csv;
  if (out.extension() == ".csv") {
    out.replace_extension();
  }
  out += ".steps.csv";
  return out;
}

const std::vector<std::string>& steps_header() {
  static const std::vector<std::string> header = [] {
    std::vector<std::string> names;
    for (const Column& c : columns()) {
      if (c.key) {
        names.emplace_back(c.name);
      }
    }
    names.insert(names.end(), {"step", "rel_error", "bytes"});
    return names;
  }();
  return header;
}

Fields step_fields(std::span<const std::string> row, const Step& step) {
  Fields out;
  out.reserve(steps_header().size());
  for (std::size_t i = 0; i < columns().size(); ++i) {
    if (columns()[i].key) {
      out.push_back(row[i]);
    }
  }
  out.push_back(fmt::format("{}", step.position));
  out.push_back(number_text(step.rel_error));
  out.push_back(fmt::format("{}", step.bytes));
  return out;
}

std::string step_row_key(std::span<const std::string> fields) {
  check_width(fields);
  Fields row(columns().size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (columns()[i].key) {
      row[i] = fields[next++];
    }
  }
  return row_key(row);
}

Index step_position(std::span<const std::string> fields) {
  check_width(fields);
  const std::string& text = fields[fields.size() - kOwnColumns];
  Index position = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), position);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError(fmt::format("steps: step `{}`, expected a position", text));
  }
  return position;
}

bool has_steps(std::string_view status) {
  const std::string_view kind = status_kind(status);
  return kind == "ok" || kind == "degenerate";
}

}  // namespace kvbench
