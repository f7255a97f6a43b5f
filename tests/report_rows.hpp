// Made-up result rows for the tests of lib/report.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "report/csv.hpp"
#include "report/manifest.hpp"
#include "report/schema.hpp"
#include "report/summary.hpp"

namespace kvbench {

inline Table read_table(const std::filesystem::path& path) {
  TableReader reader(path);
  return whole_table(reader);
}

inline void write_manifest(const std::filesystem::path& csv, const Manifest& manifest) {
  write_file_atomically(manifest_path(csv), manifest_text(manifest));
}

}  // namespace kvbench

namespace kvbench::testing_rows {

/// A fresh empty folder below gtest's temporary folder, one per test.
inline std::filesystem::path test_folder() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("kvbench_") + info->test_suite_name() + "_" + info->name());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline Row make_row(const std::string& algorithm, const std::string& params, Index layer,
                    Index q_head, std::uint64_t seed, double rel_error) {
  Row row;
  row.trace = "made_up.h5";
  row.prompt = "p0";
  row.layer = layer;
  row.q_head = q_head;
  row.kv_head = q_head / 2;
  row.algorithm = algorithm;
  row.params = params;
  row.protocol = "prefill";
  row.sink = 256;
  row.recent = 256;
  row.scores = "past";
  row.device = "cpu";
  row.seed = seed;
  row.n_tokens = 4096;
  row.n_queries = 256;
  row.tokens_kept = 1000;
  row.bytes = 256000;
  row.full_bytes = 1024000;
  row.ratio = 0.25;
  row.middle_ratio = 0.2;
  row.rel_error = rel_error;
  row.log_z_error = 0.125;
  row.mass_kept = 0.75;
  row.compress_ms = 1.5;
  row.attend_us_per_query = 3.0;
  row.status = "ok";
  return row;
}

inline Table as_table(const std::vector<Row>& rows, const std::string& source = "made_up.csv") {
  Table table;
  table.header = schema_header();
  table.source = source;
  for (const Row& row : rows) {
    table.rows.push_back(to_fields(row));
  }
  return table;
}

/// A table without the ids of its runs.
inline Table read_without_run(const std::filesystem::path& path) {
  Table table = read_table(path);
  for (Fields& row : table.rows) {
    row[table.column("run_id")].clear();
  }
  return table;
}

/// Writes a whole table.
inline void write_table(const std::filesystem::path& path, const Fields& header,
                        const std::vector<Fields>& rows) {
  std::ofstream out(path, std::ios::binary);
  out << csv_line(header);
  for (const Fields& row : rows) {
    out << csv_line(row);
  }
}

/// The tables as a summary reads them.
inline std::vector<ResultTable> result_tables(const std::vector<Table>& tables) {
  std::vector<ResultTable> out;
  for (const Table& table : tables) {
    std::string text = csv_line(table.header);
    for (const Fields& row : table.rows) {
      text += csv_line(row);
    }
    out.emplace_back([text, source = table.source] {
      return std::make_unique<TableReader>(std::make_unique<std::istringstream>(text), source);
    });
  }
  return out;
}

}  // namespace kvbench::testing_rows
