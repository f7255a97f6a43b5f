// Copies a shard's lines of one side table along with the rows that they belong to.
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

/// Number of lines per row, by the row's tokens: rows of equal n_tokens must have as many.
using LineCounts = std::map<std::string, Index>;

/// Memory: one line; in a table without steps also 24 bytes per line of a layer.
class SideLines {
 public:
  /// Of the shard `csv`. `out`: gets the lines. `counts`: shared by all shards. Errors: as of
  /// open_run_table.
  SideLines(const TableSpec& table, const Manifest& manifest, const std::filesystem::path& csv,
            StagedFile& out, LineCounts& counts);

  /// Adds the next row of the shard, which is row `place` of the plan. Copies lines of earlier
  /// rows. Throws InputError if lines do not match their rows.
  void add(const Fields& row, Index place);
  /// Copies the lines of all rows so far; later rows share none of them. Errors: as of add().
  void flush();
  /// Throws InputError if a line remains.
  void check_end();

 private:
  // Rows that share a line, or the lines of one row.
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

  bool line_ = false;  // whether lines_ has a line that is not copied yet
  std::uint64_t line_key_ = 0;
  std::vector<Group> groups_;  // in order; without steps all of a layer, otherwise one
  std::size_t group_ = 0;      // of the last row
  Fields layer_;               // of the last row
  std::string tokens_;
};

}  // namespace kvbench
