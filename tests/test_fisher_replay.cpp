// layer_budget=fisher from a trace's attribute to the rows' bytes.

#include <atomic>

#include "make_head.hpp"
#include "refusal.hpp"
#include "replay/planner.hpp"
#include "replay/run.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"
#include "report_rows.hpp"
#include "trace/writer.hpp"

namespace kvbench::test_fisher_replay {
namespace {

std::string write_trace(const std::string& path, bool fisher) {
  std::mt19937_64 generator(1);
  TraceHeader header;
  header.dtype = DType::float16;
  TraceWriter writer(path, header);
  const Index n = 600;
  writer.begin_prompt("p", n);
  for (const Index layer : {0, 1}) {
    LayerSpec spec;
    spec.layer = layer;
    spec.q_heads = 2;
    spec.kv_heads = 1;
    spec.nq = n;
    spec.d = 8;
    spec.dv = 8;
    if (fisher) {
      spec.fisher = layer == 0 ? 3.0 : 1.0;
    }
    writer.begin_layer(spec);
    for (const Index h : {0, 1}) {
      writer.write_q(h, normal_matrix(n, 8, 2.0, generator));
    }
    writer.write_k(0, normal_matrix(n, 8, 2.0, generator));
    writer.write_v(0, normal_matrix(n, 8, 1.0, generator));
  }
  writer.close();
  return path;
}

Table run(const std::string& trace) {
  ReplayOptions o;
  o.traces = {trace};
  o.out = trace + ".csv";
  o.algorithms = {"kvreviver:layer_budget=fisher,uniform"};
  o.budgets = {0.5};
  o.sink = o.recent = o.queries = 50;
  o.overwrite = true;
  const Plan plan = make_plan(o);
  const std::atomic<bool> stop = false;
  run_plan(plan, "test", stop);
  return read_table(o.out);
}

double middle_ratio(const Fields& row) {
  double x = -1.0;
  EXPECT_TRUE(parse_number(row[column_index("middle_ratio")], x)) << row[column_index("status")];
  return x;
}

bool is_fisher(const Fields& row) {
  return row[column_index("params")].find("layer_budget=fisher") != std::string::npos;
}

TEST(FisherReplay, LayersGetBytesByTheAttribute) {
  const Table table = run(write_trace(::testing::TempDir() + "/fisher_given.h5", true));
  ASSERT_EQ(table.rows.size(), 8U);
  for (const Fields& row : table.rows) {
    ASSERT_EQ(row[column_index("status")], "ok");
    const double allowed =
        !is_fisher(row) ? 0.5 : (row[column_index("layer")] == "0" ? 0.75 : 0.25);
    EXPECT_LE(middle_ratio(row), allowed);
    EXPECT_GE(middle_ratio(row), allowed - 0.05);  // whole tokens and cells
  }
}

TEST(FisherReplay, WithoutTheAttributeItIsRefusedBeforeTheFirstRow) {
  const std::string trace = write_trace(::testing::TempDir() + "/fisher_absent.h5", false);
  testing_replay::expect_refusal([&] { run(trace); }, "`fisher`");
}

}  // namespace
}  // namespace kvbench::test_fisher_replay
