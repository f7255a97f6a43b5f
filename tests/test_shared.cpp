// Budgets that heads share: who is surveyed, what shares may be, and what a wrong method gets.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "make_trace.hpp"
#include "replay/planner.hpp"
#include "replay/shared.hpp"
#include "report_rows.hpp"

namespace kvbench::test_shared {
namespace {

Survey survey(const Task& task, const Params&) {
  Survey s;
  s.tokens = 10;
  s.data = {static_cast<double>(task.kv_head)};
  return s;
}

// Everything to the first head surveyed; it is told how many there were.
std::vector<Share> all_to_first(std::span<const Survey> surveys, const Params&) {
  std::vector<Share> out(surveys.size());
  out.front().tokens = std::min<Index>(10 * std::ssize(surveys), surveys.front().middle);
  out.front().data = std::make_shared<std::vector<double>>(1, surveys.size());
  return out;
}

std::vector<Share> too_much(std::span<const Survey> surveys, const Params&) {
  std::vector<Share> out(surveys.size());
  for (Share& s : out) {
    s.tokens = 11;
  }
  return out;
}

Compressed keep_share(const Task& task, const Params&) {
  Compressed c;
  c.held.tokens.assign(task.tokens.begin(), task.tokens.begin() + task.share->tokens);
  return c;
}

Method method_of(Scope scope, std::vector<Share> (*share)(std::span<const Survey>, const Params&)) {
  Method m;
  m.info.name = "sharing";
  m.info.facts = [scope](const Params&) { return JobFacts{.scope = scope}; };
  m.compress = keep_share;
  m.survey = survey;
  m.share = share;
  return m;
}

class SharedTest : public ::testing::Test {
 protected:
  // One trace of 3 layers with 2 KV heads each; layers 0 and 2 are replayed, KV head 1 alone.
  Plan plan(const Method& m) {
    ReplayOptions o;
    o.traces = {testing_replay::make_trace(testing_rows::test_folder() / "t.h5",
                                           {.tokens = {100}, .layers = {0, 1, 2}})};
    o.algorithms = {"exact"};
    o.sink = 10;
    o.recent = 20;
    o.queries = 20;
    o.layers = {0, 2};
    o.heads = {2, 3};
    Plan p = make_plan(o);
    p.variants = {Variant{&m, {}}};
    p.entries = {Entry{0, std::nullopt, 0}};
    return p;
  }
  std::atomic<bool> stop_ = false;
};

TEST_F(SharedTest, ALayerSurveysItsHeadsAndLayersThoseOfTheReplayedOnes) {
  for (const auto& [scope, heads] : {std::pair{Scope::layer, 2}, {Scope::layers, 4}}) {
    const Method m = method_of(scope, all_to_first);
    const Plan p = plan(m);
    ASSERT_EQ(p.units.size(), 2U);
    const SharedBudgets shares(p, {0, 1}, stop_);
    Unit first = p.units[0];
    first.kv_head = 0;
    ASSERT_NE(shares.find(first, 0), nullptr);
    EXPECT_EQ(shares.find(first, 0)->share.tokens, 10 * heads);
    EXPECT_EQ(*shares.find(first, 0)->share.data, (std::vector<double>{1.0 * heads}));
    EXPECT_EQ(shares.find(p.units[0], 0)->share.tokens, 0);  // KV head 1
  }
}

TEST_F(SharedTest, MoreThanTheShareFailsTheRows) {
  Method too_large = method_of(Scope::layer, too_much);
  Method greedy = method_of(Scope::layer, all_to_first);
  greedy.compress = [](const Task& task, const Params&) {
    Compressed c;
    c.held.tokens.assign(task.tokens.begin(), task.tokens.begin() + 1);
    return c;
  };
  for (const Method* m : {&too_large, &greedy}) {
    const Plan p = plan(*m);
    const SharedBudgets shares(p, {0, 1}, stop_);
    const HeadContext context(p, p.units[0], 1);  // KV head 1, which has no share of the second
    const std::vector<Row> rows = run_job(context, p.entries[0], shares.find(p.units[0], 0)).rows;
    ASSERT_EQ(rows.size(), 2U);
    const std::string& status = rows[0].status;
    EXPECT_TRUE(m == &greedy ? status.starts_with("failed: ")
                             : status == "failed: shares that together exceed the budget")
        << status;
  }
}

TEST_F(SharedTest, NobodySharesNobodyReads) {
  Method m = method_of(Scope::head, nullptr);
  m.survey = nullptr;
  const Plan p = plan(m);
  const SharedBudgets shares(p, {0, 1}, stop_);
  EXPECT_EQ(shares.find(p.units[0], 0), nullptr);
}

}  // namespace
}  // namespace kvbench::test_shared
