#include "report/merge_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "report/row_crc.hpp"
#include "report/run_tables.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Trace, prompt and layer of the layers that have no line in OUT.layers.csv.
std::set<Fields> layers_without(const Manifest& m) {
  std::set<Fields> out;
  for (const auto& layer : m.configuration.value("layer_errors_without", nlohmann::json::array())) {
    out.insert({layer.at(0), layer.at(1), std::to_string(layer.at(2).get<Index>())});
  }
  return out;
}

}  // namespace

SideLines::SideLines(const TableSpec& table, const Manifest& manifest,
                     const std::filesystem::path& csv, StagedFile& out, LineCounts& counts)
    : table_(table),
      lines_(open_run_table(manifest, table, table.path(csv))),
      out_(out),
      counts_(counts),
      without_(table.steps() ? std::set<Fields>{} : layers_without(manifest)) {
  check_header(lines_->header(), table.header(), lines_->source());
  next_line();
}

void SideLines::refuse(const std::string& what) const {
  throw InputError(fmt::format("{}: {}", lines_->source(), what));
}

void SideLines::next_line() {
  line_ = lines_->next();
  line_key_ = line_ ? hash_of(table_.key(lines_->row())) : 0;
}

void SideLines::add(const Fields& row, Index place) {
  static const std::size_t trace = column_index("trace");
  static const std::size_t prompt = column_index("prompt");
  static const std::size_t layer = column_index("layer");
  static const std::size_t status = column_index("status");
  static const std::size_t tokens = column_index("n_tokens");
  const std::uint64_t key = hash_of(table_.key_of_row(row));
  Fields here{row[trace], row[prompt], row[layer]};
  if (here != layer_ || (table_.steps() && !groups_.empty() && groups_.front().key != key)) {
    flush();
    layer_ = std::move(here);
    tokens_ = row[tokens];
  }
  Group& group = group_of(key, place);
  group.measured = group.measured && has_lines(row[status]) && !without_.contains(layer_);
}

// Rows of a layer are ordered by KV head, then by setting.
SideLines::Group& SideLines::group_of(std::uint64_t key, Index place) {
  if (!groups_.empty() && groups_[group_].key != key) {
    ++group_;
    group_ = group_ == groups_.size() && groups_.front().key == key ? 0 : group_;
  }
  if (group_ == groups_.size()) {
    groups_.push_back({key, place, true});
  }
  if (groups_[group_].key != key) {
    refuse(fmt::format("row {} of the plan is out of order, resume the shard", place));
  }
  return groups_[group_];
}

void SideLines::flush() {
  for (const Group& group : groups_) {
    put_lines(group);
  }
  groups_.clear();
  group_ = 0;
}

void SideLines::put_lines(const Group& group) {
  const bool there = line_ && line_key_ == group.key;
  const bool steps = table_.steps();
  if (there != group.measured) {
    refuse(fmt::format("the {} of row {} of the plan {} {}, resume the shard",
                       steps ? "steps" : "line", group.place, steps ? "are" : "is",
                       group.measured ? "missing" : "unexpected"));
  }
  if (!there) {
    return;
  }
  const Index first = lines_->rows();
  Index last = -1;
  Index count = 0;
  for (; line_ && line_key_ == group.key; next_line()) {
    const Index step = table_.step(lines_->row());
    if (step <= last) {
      refuse(fmt::format("row {}: {}", lines_->rows(),
                         steps ? "steps of one row do not ascend" : "duplicate line"));
    }
    last = step;
    ++count;
    out_.put(lines_->text());
  }
  if (counts_.emplace(tokens_, count).first->second != count) {
    refuse(fmt::format("row {}: steps of one row are missing", first));
  }
}

void SideLines::check_end() {
  if (line_) {
    refuse(fmt::format("row {}: {} of the shard", lines_->rows(),
                       table_.steps() ? "a step of no row" : "a line of no rows"));
  }
}

}  // namespace kvbench
