// cake against its definition; its layers' budgets by hand.
#include "algorithms/shared/layer_budgets.hpp"
#include "reference/cake.hpp"
#include "selection_checks.hpp"

namespace kvbench::test_cake {
namespace {

// Float64 products of some tens, in exponentials.
constexpr reference::Real kRounding = 1e-11L;

TEST(Cake, EqualsReference) {
  const Method& method = find_method("cake");
  for (const double norm : {0.5, 5.0}) {
    const KvHead head = make_head({.n = 110, .nq = 70, .d = 11, .group = 3, .key_norm = norm}, 9);
    for (const std::vector<Index>& tokens : token_lists(8, 90)) {
      for (const Range window : {Range{68, 100}, Range{99, 100}, Range{40, 45}}) {
        const JobOf job("cake", head, tokens, {40, window.end});
        for (const auto& [gamma, kernel] : {std::pair{"200", "5"}, {"0", "1"}, {"3", "9"}}) {
          for (const char* reduce : {"mean", "max"}) {
            const Given given = {{"window", std::to_string(window.size())},
                                 {"gamma", gamma},
                                 {"kernel", kernel},
                                 {"reduce", reduce}};
            const reference::Cake slow =
                reference::cake(head, tokens, window.begin, window.end, std::stold(gamma),
                                std::stoll(kernel), reference::kReduces.at(reduce));
            expect_best_kept(job, slow.scores, kRounding, given);
            const Survey survey = method.survey(job.task(0), job.params(given));
            EXPECT_NEAR(survey.data[0], static_cast<double>(slow.entropy), 1e-10);
            EXPECT_NEAR(survey.data[1], static_cast<double>(slow.variance), 1e-12);
          }
        }
      }
    }
  }
}

Survey survey_of(Index layer, Index kv_head, Index tokens, double entropy, double variance) {
  Survey out{tokens, {entropy, variance}};
  out.layer = layer;
  out.kv_head = kv_head;
  out.middle = 100;
  out.pair_bytes = 64;
  return out;
}

// Preferences 2 * .1, (1 + 3) * (.05 + .05), 1 * .2 of the layers: 1 to 2 to 1. 80 tokens.
TEST(Cake, LayersShareByPreference) {
  const std::vector<Survey> surveys = {
      survey_of(3, 0, 20, 1.5, 0.05),  survey_of(3, 1, 20, 0.5, 0.05),
      survey_of(5, 0, 20, 1.0, 0.05),  survey_of(5, 1, 20, 3.0, 0.05),
      survey_of(7, 0, 40, 0.25, 0.15), survey_of(7, 1, 40, 0.75, 0.05)};
  EXPECT_EQ(shared_tokens("cake", surveys), (std::vector<Index>{20, 20, 40, 40, 20, 20}));
  // Square roots of spread: sqrt(2) * .1, 2 * .1, .2: .26 + .37 + .37 of 80 are 20.9, 29.5, 29.5.
  EXPECT_EQ(shared_tokens("cake", surveys, {{"tau_entropy", "2"}}),
            (std::vector<Index>{21, 21, 30, 30, 29, 29}));
}

// 2e4^100 is above float64's range, 2e-4^100 below it. Twice as large is 2^100 times as large.
TEST(Cake, PreferencesMayLeaveTheRangeOfFloat64) {
  EXPECT_EQ(shared_tokens("cake", {survey_of(0, 0, 50, 1e4, 1), survey_of(1, 0, 50, 2e4, 1)},
                          {{"tau_entropy", "0.01"}}),
            (std::vector<Index>{0, 100}));
  EXPECT_EQ(shared_tokens("cake", {survey_of(0, 0, 50, 1, 2e-4), survey_of(1, 0, 50, 1, 1e-4)},
                          {{"tau_variance", "0.01"}}),
            (std::vector<Index>{100, 0}));
  // Of 5e5^100 * (1e-5)^100 and 4e5^100 * (1e-5)^100.
  EXPECT_EQ(shared_tokens("cake", {survey_of(0, 0, 50, 5e5, 1e-5), survey_of(1, 0, 50, 4e5, 1e-5)},
                          {{"tau_entropy", "0.01"}, {"tau_variance", "0.01"}}),
            (std::vector<Index>{100, 0}));
}

TEST(Cake, WhatExceedsAMiddleGoesToTheOthersEqually) {
  // 1 to 8 to 1 of 150: 15, 120, 15. 20 of them are too many.
  EXPECT_EQ(shared_tokens("cake", {survey_of(0, 0, 50, 1, 1), survey_of(1, 0, 50, 8, 1),
                                   survey_of(2, 0, 50, 1, 1)}),
            (std::vector<Index>{25, 100, 25}));
  EXPECT_EQ(shared_tokens("cake", {survey_of(0, 0, 30, 0, 0), survey_of(1, 0, 40, 0, 0)}),
            (std::vector<Index>{35, 35}));
  EXPECT_EQ(proportional({1.0, 10.0, 100.0}, {90.0, 100.0, 100.0}, 290.0),
            (std::vector<double>{90.0, 100.0, 100.0}));
}

}  // namespace
}  // namespace kvbench::test_cake
