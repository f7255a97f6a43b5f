#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <span>

#include "core/error.hpp"
#include "replay/cluster_tables.hpp"
#include "report/row_crc.hpp"
#include "report/schema.hpp"
#include "report/side_table.hpp"
#include "report_rows.hpp"

namespace kvbench {
namespace {

using testing_rows::make_row;

// Columns may be appended, which raises the minor version; all else would break readers.
TEST(Schema, HeaderBeginsWithVersion11WordForWord) {
  EXPECT_TRUE(
      csv_line(schema_header())
          .starts_with(
              "schema,trace,prompt,layer,q_head,kv_head,algorithm,params,protocol,sink,recent,"
              "scores,"
              "device,seed,n_tokens,n_queries,budget_requested,tokens_kept,bytes,full_bytes,ratio,"
              "middle_ratio,aux_bytes,peak_bytes,transient_bytes,rel_error,rel_error_mean,rel_"
              "error_p50,"
              "rel_error_p95,rel_error_max,eps_fro,eps_op,log_z_error,cosine,mass_kept,amnesia_"
              "count,"
              "amnesia_mass,compress_ms,attend_us_per_query,status,diag,scoring_queries,"
              "repeats,compress_ms_iqr,attend_us_per_query_iqr"))
      << csv_line(schema_header());
  EXPECT_TRUE(schema_version.starts_with("1."));
  EXPECT_EQ(schema_version == "1.3", schema_header().size() == 45);
}

TEST(Schema, KeyAndTimingColumns) {
  std::string keys;
  std::string timings;
  for (const Column& c : columns()) {
    keys += c.key ? std::string(c.name) + " " : "";
    timings += c.timing ? std::string(c.name) + " " : "";
    EXPECT_FALSE(c.key && c.measured) << c.name;
    EXPECT_FALSE(c.doc.empty()) << c.name;
  }
  EXPECT_EQ(keys,
            "trace prompt layer q_head algorithm params protocol sink recent scores device seed "
            "n_queries budget_requested ");
  EXPECT_EQ(timings, "compress_ms attend_us_per_query compress_ms_iqr attend_us_per_query_iqr ");
}

TEST(Schema, EveryFieldReachesItsColumn) {
  Row row = make_row("balancekv", "T=2", 3, 5, 18446744073709551615ULL, 0.1);
  row.budget_requested = 0.25;
  row.diag = "a=1;b=2";
  const std::vector<std::string> fields = to_fields(row);
  const auto field = [&](std::string_view name) { return fields[column_index(name)]; };
  EXPECT_EQ(field("schema"), schema_version);
  EXPECT_EQ(field("scoring_queries"), "");
  row.scoring_queries = 32;
  EXPECT_EQ(to_fields(row)[column_index("scoring_queries")], "32");
  EXPECT_EQ(field("layer"), "3");
  EXPECT_EQ(field("q_head"), "5");
  EXPECT_EQ(field("kv_head"), "2");
  EXPECT_EQ(field("seed"), "18446744073709551615");
  EXPECT_EQ(field("budget_requested"), "0.25");
  EXPECT_EQ(field("rel_error"), "0.1");
  EXPECT_EQ(field("eps_op"), "nan");  // nobody measured it, and that shows
  EXPECT_EQ(field("diag"), "a=1;b=2");
  row.budget_requested.reset();
  EXPECT_EQ(to_fields(row)[column_index("budget_requested")], "");
}

TEST(Schema, RowsWithoutMeasurementsLeaveThemEmpty) {
  Row row = make_row("quant-kivi", "bits=2", 0, 0, 0, 0.1);
  for (const char* status : {"infeasible: needs 1024 bytes", "failed: out of memory"}) {
    row.status = status;
    const std::vector<std::string> fields = to_fields(row);
    for (std::size_t i = 0; i < fields.size(); ++i) {
      EXPECT_TRUE(!columns()[i].measured || fields[i].empty()) << columns()[i].name;
    }
    EXPECT_EQ(fields[column_index("full_bytes")], "1024000");
  }
  row.status = "degenerate: zero denominator";
  EXPECT_EQ(to_fields(row)[column_index("rel_error")], "0.1");
}

TEST(Schema, NumbersRoundTrip) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(random());
    double back = 0.0;
    ASSERT_TRUE(parse_number(number_text(value), back)) << number_text(value);
    ASSERT_TRUE(std::isnan(value)
                    ? std::isnan(back)
                    : std::bit_cast<std::uint64_t>(value) == std::bit_cast<std::uint64_t>(back));
  }
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::quiet_NaN()), "nan");
  double value = 0.0;
  for (const char* bad : {"", "1,5", "0.1 ", "abc", "1.0x"}) {
    EXPECT_FALSE(parse_number(bad, value)) << bad;
  }
}

TEST(Schema, KeysDifferWhereIdentityDiffersOnly) {
  const Row row = make_row("h2o", "a=1", 1, 2, 3, 0.5);
  Row other = row;
  other.rel_error = 0.9;
  other.compress_ms = 77;
  other.status = "failed: x";
  EXPECT_EQ(row_key(to_fields(row)), row_key(to_fields(other)));
  other.budget_requested = 0.5;
  EXPECT_NE(row_key(to_fields(row)), row_key(to_fields(other)));
  // Text that moves from one column into its neighbour is another identity.
  Row left = row;
  Row right = row;
  left.trace = "ab";
  left.prompt = "c";
  right.trace = "a";
  right.prompt = "bc";
  EXPECT_NE(row_key(to_fields(left)), row_key(to_fields(right)));
  EXPECT_THROW(row_key(std::vector<std::string>{"1.0"}), InputError);
}

TEST(Schema, SplitsParams) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(split_params("T=2;gamma=0.5;odd"), (Pairs{{"T", "2"}, {"gamma", "0.5"}, {"odd", ""}}));
  EXPECT_EQ(split_params("a=b=c"), (Pairs{{"a", "b=c"}}));
  EXPECT_TRUE(split_params("").empty());
}

TEST(Schema, UnknownColumnIsAnError) {
  EXPECT_THROW(column_index("no_such_column"), InputError);
}

#ifdef KVBENCH_SOURCE_DIR
// A Markdown table: the header's cells, then a line for each column.
std::string table_text(const Fields& header, const std::vector<Fields>& lines) {
  const auto line = [](const Fields& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) {
      out += " ";
      for (const char c : cell) {
        out += c == '|' ? "\\|" : std::string(1, c);
      }
      out += " |";
    }
    return out + "\n";
  };
  std::string out = line(header) + line(Fields(header.size(), "---"));
  for (const Fields& cells : lines) {
    out += line(cells);
  }
  return out;
}

Fields cells_of(const ColumnDoc& c) {
  return {"`" + std::string(c.name) + "`", c.unit.empty() ? "-" : std::string(c.unit),
          std::string(c.doc)};
}

std::string table_text(const std::vector<ColumnDoc>& columns) {
  std::vector<Fields> lines;
  for (const ColumnDoc& c : columns) {
    lines.push_back(cells_of(c));
  }
  return table_text({"column", "unit", "meaning"}, lines);
}

std::string main_table_text() {
  std::vector<Fields> lines;
  for (const Column& c : columns()) {
    Fields cells = cells_of(c);
    cells.emplace_back(c.missing);
    cells.emplace_back(c.key ? "key" : c.timing ? "timing" : "");
    lines.push_back(cells);
  }
  std::string out = table_text({"column", "unit", "meaning", "missing", "kind"}, lines);
  return out.replace(out.find(" kind "), 6, " ");
}

// The page with each table as declared: it stands below the comment that names it and ends at an
// empty line.
std::string documented(std::string page) {
  const std::span<const ColumnDoc> last = row_crc_columns();
  std::map<std::string, std::string> tables = {
      {"OUT.csv", main_table_text()},
      {"run_id and row_crc", table_text({last.begin(), last.end()})},
      {"all cluster tables", table_text(cluster_place_columns())},
      {"all cluster tables but points.csv, at the end", table_text(cluster_origin_columns())}};
  tables["OUT.queries.csv of --per-query=all"] = table_text(every_query_table().own());
  for (const SideTable* table : all_side_tables()) {
    tables[table->path("OUT.csv").string()] = table_text(table->own());
  }
  for (const auto& [name, own] : cluster_columns()) {
    tables[name] = table_text(own);
  }
  for (const auto& [name, text] : tables) {
    const std::string mark = "\n<!-- columns: " + name + " -->\n";
    const std::size_t found = page.find(mark);
    EXPECT_NE(found, std::string::npos) << "docs/schema.md has no" << mark;
    if (found != std::string::npos) {
      const std::size_t begin = found + mark.size();
      page.replace(begin, page.find("\n\n", begin) + 1 - begin, text);
    }
  }
  const std::string says = "schema version **";
  const std::size_t begin = page.find(says) + says.size();
  return page.replace(begin, page.find("**", begin) - begin, schema_version);
}

// scripts/update_schema_docs.sh sets the variable: the page is written there.
TEST(Schema, DocumentShowsTheColumnsAsDeclared) {
  const std::string page = read_text_file(KVBENCH_SOURCE_DIR "/docs/schema.md");
  const std::string expected = documented(page);
  if (const char* out = std::getenv("KVBENCH_SCHEMA_DOCS")) {
    std::ofstream(out) << expected;
    return;
  }
  EXPECT_TRUE(page == expected) << "docs/schema.md: run scripts/update_schema_docs.sh";
}
#endif

}  // namespace
}  // namespace kvbench
