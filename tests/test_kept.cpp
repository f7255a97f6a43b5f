// Kept sets: their text, and that OUT.kept.csv holds what each algorithm really kept.

#include "replay_run.hpp"
#include "report/table_spec.hpp"

namespace kvbench::test_kept {
namespace {

using Indices = std::vector<Index>;

TEST(KeptRanges, ByHand) {
  EXPECT_EQ(ranges_text(Indices{}), "");
  EXPECT_EQ(ranges_text(Indices{7}), "7");
  EXPECT_EQ(ranges_text(Indices{0, 1}), "0-1");
  EXPECT_EQ(ranges_text(Indices{0, 1, 2, 5, 7, 8}), "0-2 5 7-8");
  EXPECT_EQ(parse_ranges("", 0), Indices{});
  EXPECT_EQ(parse_ranges("0-2 5 7-8", 9), (Indices{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(parse_ranges("3-4 5", 6), (Indices{3, 4, 5}));  // touching ranges are no harm
}

TEST(KeptRanges, EverySetComesBack) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const Index n = 1 + static_cast<Index>(random() % 40);
    Indices tokens;
    for (Index t = 0; t < n; ++t) {
      if (random() % 3 != 0) {
        tokens.push_back(t);
      }
    }
    EXPECT_EQ(parse_ranges(ranges_text(tokens), n), tokens);
  }
}

TEST(KeptRanges, RefusesWhatIsNone) {
  for (const char* text : {" ", "1 ", " 1", "1  2", "-1", "2-1", "1-", "a", "1,2", "2 1", "1 1",
                           "0-3 3", "9", "5-9", "0-99999999999999999999", "1.5", "+1", "0x1"}) {
    EXPECT_THROW(parse_ranges(text, 9), InputError) << text;
  }
}

class KeptTest : public testing_replay::ReplayTest {
 protected:
  ReplayOptions options(Protocol protocol, const std::string& out = "out.csv") const {
    ReplayOptions o = basic(out);
    o.algorithms = {"exact", "uniform", "streamingllm", "h2o"};
    o.budgets = {0.6};
    o.seeds = "2";
    o.eval_every = protocol == Protocol::stream ? 7 : 0;
    o.protocol = protocol;
    o.kept = true;
    return o;
  }
};

// By hand from the main table: one line per KV head and entry at each step, as many tokens as
// `tokens_kept` says at the last, the windows among them; none of a row without measurement.
TEST_F(KeptTest, LinesHoldWhatTheRowsSay) {
  for (const Protocol protocol : {Protocol::prefill, Protocol::stream}) {
    ReplayOptions o = options(protocol, std::string(name(protocol)) + ".csv");
    o.budgets = {0.6, 0.1};  // of a stream 0.1 is below the window's bytes
    EXPECT_EQ(run(o).infeasible > 0, protocol == Protocol::stream);
    const Table rows = read_table(o.out);
    const Table kept = read_table(kept_table().path(o.out));
    EXPECT_EQ(kept.header.size(), 22U);
    std::size_t at = 0;
    std::string last_key;
    for (const Fields& row : rows.rows) {
      if (!has_lines(row[rows.column("status")])) {
        continue;
      }
      const std::string key = kept_table().key_of_row(row);
      if (key == last_key) {
        continue;  // another query head of the same KV head
      }
      last_key = key;
      const Index n = std::stol(row[rows.column("n_tokens")]);
      Indices steps = {n - 1};
      if (protocol == Protocol::stream) {
        for (Index j = n - 2; j >= 0; --j) {
          if ((j + 1) % 7 == 0) {
            steps.insert(steps.begin(), j);
          }
        }
      }
      for (const Index step : steps) {
        const Fields& line = kept.rows.at(at++);
        EXPECT_EQ(kept_table().key(line), key);
        ASSERT_EQ(line[kept.column("step")], std::to_string(step));
        const Indices tokens = parse_ranges(line[kept.column("tokens")], step + 1);
        for (Index t = std::max<Index>(0, step - 11); t <= step; ++t) {
          EXPECT_TRUE(std::binary_search(tokens.begin(), tokens.end(), t)) << name(protocol) << t;
        }
        for (Index t = 0; t < std::min<Index>(4, step + 1); ++t) {
          EXPECT_TRUE(std::binary_search(tokens.begin(), tokens.end(), t)) << name(protocol) << t;
        }
        if (step == n - 1) {
          EXPECT_EQ(std::to_string(tokens.size()), row[rows.column("tokens_kept")]);
        }
        if (row[rows.column("algorithm")] == "exact") {
          EXPECT_EQ(static_cast<Index>(tokens.size()), step + 1);
        }
      }
    }
    EXPECT_EQ(at, kept.rows.size());
  }
}

// streamingllm under prefill keeps the first of the middle and the last: known without running it.
TEST_F(KeptTest, TheTokensAreTheRightOnes) {
  ReplayOptions o = options(Protocol::prefill);
  o.algorithms = {"local:tokens=5"};
  o.budgets.clear();
  run(o);
  const Table kept = read_table(kept_table().path(o.out));
  EXPECT_EQ(kept.rows.size(), 8U);  // 2 prompts, 2 layers, 2 KV heads
  EXPECT_EQ(kept.rows.front()[kept.column("tokens")], "0-3 43-59");
  EXPECT_EQ(kept.rows.back()[kept.column("tokens")], "0-3 20-36");
}

}  // namespace
}  // namespace kvbench::test_kept
