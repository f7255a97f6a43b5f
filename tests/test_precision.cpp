// Whole runs in both precisions.
#include "replay_run.hpp"

namespace kvbench::test_precision {
namespace {

using namespace testing_replay;
using testing_rows::read_without_run;

const std::string& cell(const Fields& row, const char* name) {
  return row[column_index(name)];
}

class PrecisionTest : public ReplayTest {
 protected:
  ReplayOptions options(Precision precision, const std::string& out) const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact", "uniform"};
    o.budgets = {0.5};
    o.sink = 2;
    o.kept = true;
    o.threads = 2;
    o.precision = precision;
    return o;
  }

  // Runs `change`d options in both precisions: rows agree to rounding, what is kept is the same.
  template <class Change>
  void expect_agreement(const Change& change) const;
};

template <class Change>
void PrecisionTest::expect_agreement(const Change& change) const {
  const std::string trace = make_trace(folder_ / "longer.h5", {.tokens = {200}});
  for (const auto& [precision, out] :
       {std::pair(Precision::float32, "single.csv"), std::pair(Precision::float64, "double.csv")}) {
    ReplayOptions o = options(precision, out);
    o.traces = {trace};
    change(o);
    run(o);
  }
  const auto single = untimed(folder_ / "single.csv");
  const auto wide = untimed(folder_ / "double.csv");
  ASSERT_EQ(single.size(), wide.size());
  bool differs = false;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    for (const char* name : {"algorithm", "tokens_kept", "bytes", "status", "amnesia_count"}) {
      EXPECT_EQ(cell(single[i], name), cell(wide[i], name));
    }
    for (const char* name : {"rel_error", "rel_error_max", "eps_fro", "eps_op", "log_z_error",
                             "cosine", "mass_kept"}) {
      const double a = std::stod(cell(single[i], name));
      const double b = std::stod(cell(wide[i], name));
      // Attention is off by some 1e-7 of the values. These cancel in an output: over 200 tokens it
      // is some 14 times smaller, and the largest error is of a query whose output is smaller
      // still.
      EXPECT_LE(std::abs(a - b), 1e-5) << name;
      differs = differs || a != b;
    }
  }
  EXPECT_TRUE(differs);
  Table kept = read_without_run(folder_ / "single.kept.csv");
  for (Fields& line : kept.rows) {
    EXPECT_EQ(line[kept.column("precision")], "float32");
    line[kept.column("precision")] = "float64";
  }
  EXPECT_EQ(kept.rows, read_without_run(folder_ / "double.kept.csv").rows);
}

TEST_F(PrecisionTest, RowsAgreeToRoundingAndTheSameTokensStay) {
  expect_agreement([](ReplayOptions& o) {
    o.algorithms = {"exact",     "uniform", "balancekv", "kmeans", "knorm",
                    "bumblebee", "h2o",     "tova",      "cam",    "kvreviver"};
  });
}

TEST_F(PrecisionTest, StreamsDecideAlike) {
  expect_agreement([](ReplayOptions& o) {
    o.protocol = Protocol::stream;
    o.algorithms = {"h2o", "tova", "cam", "bumblebee-stream", "kvreviver"};
  });
}

}  // namespace
}  // namespace kvbench::test_precision
