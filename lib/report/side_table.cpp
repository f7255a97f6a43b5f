#include "report/side_table.hpp"

#include <fmt/format.h>

#include <charconv>
#include <iterator>

#include "core/error.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

void append_to_key(std::string& key, const std::string& field) {
  fmt::format_to(std::back_inserter(key), "{}:{},", field.size(), field);
}

}  // namespace

SideTable::SideTable(std::string_view name, std::span<const std::string_view> joined,
                     std::span<const std::string_view> own, bool steps)
    : name_(name), steps_(steps) {
  for (const std::string_view column : joined) {
    joined_.push_back(column_index(column));
    header_.emplace_back(column);
    per_query_head_ = per_query_head_ || column == "q_head";
  }
  if (steps_) {
    header_.emplace_back("step");
  }
  header_.insert(header_.end(), own.begin(), own.end());
}

std::filesystem::path SideTable::path(const std::filesystem::path& csv) const {
  std::filesystem::path out = csv;
  if (out.extension() == ".csv") {
    out.replace_extension();
  }
  out += "." + name_ + ".csv";
  return out;
}

void SideTable::check_width(std::span<const std::string> line) const {
  if (line.size() != header_.size()) {
    throw InputError(
        fmt::format("{}: a row has {} fields, expected {}", name_, line.size(), header_.size()));
  }
}

Fields SideTable::line(std::span<const std::string> row, Index step,
                       std::span<const std::string> own) const {
  Fields out;
  out.reserve(header_.size());
  for (const std::size_t column : joined_) {
    out.push_back(row[column]);
  }
  if (steps_) {
    out.push_back(fmt::format("{}", step));
  }
  out.insert(out.end(), own.begin(), own.end());
  check_width(out);
  return out;
}

std::string SideTable::key(std::span<const std::string> line) const {
  check_width(line);
  std::string key;
  for (std::size_t i = 0; i < joined_.size(); ++i) {
    append_to_key(key, line[i]);
  }
  return key;
}

std::string SideTable::key_of_row(std::span<const std::string> row) const {
  std::string key;
  for (const std::size_t column : joined_) {
    append_to_key(key, row[column]);
  }
  return key;
}

Index SideTable::step(std::span<const std::string> line) const {
  check_width(line);
  if (!steps_) {
    return 0;
  }
  const std::string& text = line[joined_.size()];
  Index position = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), position);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InputError(fmt::format("{}: step `{}`, expected a position", name_, text));
  }
  return position;
}

bool has_lines(std::string_view status) {
  const std::string_view kind = status_kind(status);
  return kind == "ok" || kind == "degenerate";
}

}  // namespace kvbench
