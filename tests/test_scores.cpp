// Accumulated attention against long double, its reduction, and the book that shares it.

#include <functional>
#include <thread>

#include "attention/scores.hpp"
#include "counting_backend.hpp"
#include "make_head.hpp"
#include "read_rows.hpp"
#include "reference/selection.hpp"

namespace kvbench::test_scores {
namespace {

// float64 sums of at most two hundred weights of at most 1 against long double ones.
constexpr double kRounding = 1e-12;

void expect_equal(const std::vector<std::vector<double>>& fast, const reference::Rows& slow) {
  ASSERT_EQ(fast.size(), slow.size());
  for (std::size_t g = 0; g < slow.size(); ++g) {
    ASSERT_EQ(fast[g].size(), slow[g].size());
    expect_all_near(fast[g], slow[g], kRounding);
  }
}

TEST(AttentionSums, EqualReferenceForOddRanges) {
  HeadShape shape{.n = 150, .d = 7, .group = 2};
  for (const Index nq : {1, 64, 65, 129, 150}) {
    shape.nq = nq;
    const KvHead head = make_head(shape, static_cast<unsigned>(nq));
    const Index start = 150 - nq;
    for (const Range r : {Range{start, 150}, Range{start, start + 1}, Range{149, 150},
                          Range{std::min<Index>(149, start + 3), 149}, Range{start, start},
                          Range{150, 150}, Range{0, 150}, Range{0, start}, Range{80, 70}}) {
      expect_equal(attention_sums(head, r), reference::attention_sums(head, r.begin, r.end));
    }
  }
}

// More tokens than are widened at a time, and queries in several blocks; also sharp: one token
// takes nearly all.
TEST(AttentionSums, EqualReferenceAcrossBlocks) {
  for (const double norm : {3.0, 60.0}) {
    const KvHead head = make_head({.n = 1100, .nq = 70, .d = 3, .group = 1, .key_norm = norm}, 8);
    expect_equal(attention_sums(head, {1031, 1099}), reference::attention_sums(head, 1031, 1099));
  }
}

TEST(AttentionSums, HugeLogitsStayFinite) {
  const KvHead head = make_head({.key_norm = 1e6}, 10);
  for (const auto& sums : attention_sums(head, {0, 64})) {
    for (const double x : sums) {
      EXPECT_TRUE(std::isfinite(x));
    }
  }
}

TEST(AttentionSums, EqualKeysShareEqually) {
  KvHead head = make_head({}, 11);
  repeat_first_row(head.k);
  for (const auto& sums : attention_sums(head, {40, 64})) {
    for (std::size_t i = 1; i <= 40; ++i) {
      EXPECT_EQ(sums[i], sums[0]);  // to the bit: ties must be ties
    }
  }
}

TEST(ReduceGroup, MeanMaxSum) {
  const std::vector<std::vector<double>> scores = {{1.0, 0.0, -2.0}, {3.0, 0.0, 5.0}, {2.0, 0, 0}};
  EXPECT_EQ(reduce_group(scores, Reduce::mean), (std::vector<double>{2.0, 0.0, 1.0}));
  EXPECT_EQ(reduce_group(scores, Reduce::max), (std::vector<double>{3.0, 0.0, 5.0}));
  EXPECT_EQ(reduce_group(scores, Reduce::sum), (std::vector<double>{6.0, 0.0, 3.0}));
  for (const Reduce r : {Reduce::mean, Reduce::max, Reduce::sum}) {
    EXPECT_EQ(reduce_group({{0.1, 0.7}}, r), (std::vector<double>{0.1, 0.7}));
  }
}

TEST(ScoreBook, GivesTheSumsOnceAndKeepsThem) {
  const KvHead head = make_head({}, 12);
  const ScoreBook book(head);
  const auto* first = &book.sums({10, 50});
  EXPECT_EQ(*first, attention_sums(head, {10, 50}));
  for (Index end = 11; end < 60; ++end) {
    book.sums({10, end});  // the map grows; what was given stays where it is
  }
  EXPECT_EQ(&book.sums({10, 50}), first);
  EXPECT_EQ(*first, attention_sums(head, {10, 50}));
  EXPECT_NE(&book.sums({11, 50}), first);
}

TEST(ScoreBook, ManyThreadsGetOneResult) {
  const KvHead head = make_head({.n = 300, .nq = 300}, 13);
  const ScoreBook book(head);
  const Index ranges = 6;
  const int workers = 8;
  std::vector<std::vector<const void*>> seen(workers);
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] {
      ++ready;
      while (ready < workers) {  // all start together
        std::this_thread::yield();
      }
      for (Index r = 0; r < ranges; ++r) {
        seen[w].push_back(&book.sums({r, 200 + r}));
      }
    });
  }
  for (std::thread& t : threads) {
    t.join();
  }
  for (const auto& of_worker : seen) {
    EXPECT_EQ(of_worker, seen[0]);
  }
  for (Index r = 0; r < ranges; ++r) {
    EXPECT_EQ(book.sums({r, 200 + r}), attention_sums(head, {r, 200 + r}));
  }
}

// A clock that only computing moves: charges are exact, whatever else the machine does.
constexpr double kComputing = 5.0;
std::atomic<double> seconds_gone = 0.0;

double seconds_now() {
  return seconds_gone;
}

class SlowBackend final : public testing_backend::CountingBackend {
 public:
  using CountingBackend::CountingBackend;
  std::vector<std::vector<double>> attention_sums(const KvHead& head,
                                                  Range queries) const override {
    seconds_gone = seconds_gone + kComputing;
    return CountingBackend::attention_sums(head, queries);
  }
};

// What a piece of work is charged: its own time and the correction.
double charged(const std::function<void()>& work) {
  ScoreBook::reset_charged_seconds();
  const double start = seconds_now();
  work();
  const double own = seconds_now() - start;
  return own + ScoreBook::reset_charged_seconds();
}

// Whoever uses scores is charged for computing them, also who finds them computed; by thread.
TEST(ScoreBook, ChargesEveryUser) {
  const KvHead head = make_head({.n = 50, .nq = 50}, 14);
  testing_backend::Calls calls;
  const SlowBackend backend(calls);
  const ScoreBook book(head, backend, seconds_now);
  const auto ask = [&] { book.sums({0, 50}); };
  ScoreBook::reset_charged_seconds();
  EXPECT_EQ(ScoreBook::reset_charged_seconds(), 0.0);

  EXPECT_EQ(charged(ask), kComputing);                 // computes them
  EXPECT_EQ(ScoreBook::reset_charged_seconds(), 0.0);  // taken is taken
  EXPECT_EQ(charged(ask), kComputing);                 // finds them
  EXPECT_EQ(charged([&] { ask(), ask(); }), 2.0 * kComputing);
  EXPECT_EQ(charged([&] { book.sums({0, 25}); }), kComputing);
  std::thread([&] {
    EXPECT_EQ(ScoreBook::reset_charged_seconds(), 0.0);
    EXPECT_EQ(charged(ask), kComputing);
    ask();
  }).join();
  EXPECT_EQ(ScoreBook::reset_charged_seconds(), 0.0);  // that was the other thread's
  EXPECT_EQ(calls.sums, 2);
}

}  // namespace
}  // namespace kvbench::test_scores
