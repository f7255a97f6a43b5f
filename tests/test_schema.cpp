#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "report/schema.hpp"
#include "report/table_spec.hpp"
#include "report_rows.hpp"

namespace kvbench::test_schema {
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
  EXPECT_EQ(main_table().key(to_fields(row)), main_table().key(to_fields(other)));
  other.budget_requested = 0.5;
  EXPECT_NE(main_table().key(to_fields(row)), main_table().key(to_fields(other)));
  // Text that moves from one column into its neighbour is another identity.
  Row left = row;
  Row right = row;
  left.trace = "ab";
  left.prompt = "c";
  right.trace = "a";
  right.prompt = "bc";
  EXPECT_NE(main_table().key(to_fields(left)), main_table().key(to_fields(right)));
  EXPECT_THROW(main_table().key(std::vector<std::string>{"1.0"}), InputError);
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

}  // namespace
}  // namespace kvbench::test_schema
