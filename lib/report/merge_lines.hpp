// A shard's lines of one side table, as merging takes them: beside the rows that they belong to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "core/types.hpp"
#include "report/manifest.hpp"
#include "report/table_reader.hpp"
#include "report/table_spec.hpp"

namespace kvbench {

/// Lines of the queries of a row, by the row's tokens: prompts of one length have as many.
using LineCounts = std::map<std::string, Index>;

/// Memory: one row's lines; of a table with one line for many rows 24 bytes a line of a layer.
class SideLines {
 public:
  /// The table beside `csv`. `out`: where its lines go; `counts`: those of all shards. Throws as
  /// open_run_table.
  SideLines(const TableSpec& table, const Manifest& manifest, const std::filesystem::path& csv,
            StagedFile& out, LineCounts& counts);

  /// The next row of the shard, which is row `place` of the plan. Puts the lines of rows before it
  /// that are complete. Throws InputError where lines do not go with their rows.
  void add(const Fields& row, Index place);
  /// Rows that follow share no line with those before. Errors: as of add().
  void flush();
  /// Throws InputError where a line is left.
  void check_end();

 private:
  // Rows that share a line, or lines that only their steps tell apart.
  struct Group {
    std::uint64_t key = 0;  // hash
    Index place = 0;        // of the first row
    bool measured = true;
  };

  void next_line();
  Group& group_of(std::uint64_t key, Index place);
  void put_lines(const Group& group);
  [[noreturn]] void refuse(const std::string& what) const;

  const TableSpec& table_;
  std::unique_ptr<TableReader> lines_;
  StagedFile& out_;
  LineCounts& counts_;
  std::set<Fields> without_;  // trace, prompt and layer of layers without lines

  bool line_ = false;  // whether lines_ has one that is not yet put
  std::uint64_t line_key_ = 0;
  std::vector<Group> groups_;  // in order: without steps all of a layer, else one
  std::size_t group_ = 0;      // the last row's
  Fields layer_;               // the last row's
  std::string tokens_;
};

}  // namespace kvbench
