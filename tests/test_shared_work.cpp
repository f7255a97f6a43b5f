// Work that a job shares with idle threads: every part once, sums in order, exceptions, and rows of
// one head with the same bits for any number of threads.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <latch>
#include <memory>
#include <set>
#include <stdexcept>

#include "algorithms/grid.hpp"
#include "core/parallel.hpp"
#include "core/shared_work.hpp"
#include "replay_run.hpp"

namespace kvbench::test_shared_work {
namespace {

// Counts some threads as idle, as parallel_for does with those that have no task.
class Idle {
 public:
  explicit Idle(int count) : count_(count) { IdleThreads::add(count); }
  ~Idle() { IdleThreads::add(-count_); }

 private:
  int count_;
};

void pause() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(SharedWork, EveryPartRunsOnce) {
  for (const int idle : {0, 1, 3}) {
    const Idle some(idle);
    for (const Index count : {0, 1, 2, 50}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      share_work(count, [&](Index i) { ++calls[static_cast<std::size_t>(i)]; });
      EXPECT_TRUE(std::ranges::all_of(calls, [](const auto& n) { return n == 1; }));
    }
  }
}

TEST(SharedWork, HelpersAreTheIdleThreadsAndNoMore) {
  std::mutex mutex;
  const auto threads_of = [&](int idle) {
    const Idle some(idle);
    std::set<std::thread::id> ids;
    share_work(40, [&](Index) {
      {
        const std::lock_guard lock(mutex);
        ids.insert(std::this_thread::get_id());
      }
      pause();
    });
    return ids.size();
  };
  EXPECT_EQ(threads_of(0), 1U);
  EXPECT_LE(threads_of(2), 3U);
  const Idle one(1);  // helpers were given back
  EXPECT_TRUE(IdleThreads::take());
  EXPECT_FALSE(IdleThreads::take());
  IdleThreads::add(1);
}

TEST(SharedWork, AddsInOrder) {
  const Idle some(3);
  std::vector<Index> order;
  share_in_order(
      60,
      [](Index i) {
        if (i % 7 == 0) {
          pause();
        }
        return i * i;
      },
      [&](Index i, Index square) {
        EXPECT_EQ(square, i * i);
        order.push_back(i);
      });
  ASSERT_EQ(order.size(), 60U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST(SharedWork, AnExceptionEndsAllThreads) {
  const Idle some(3);
  std::atomic<int> calls = 0;
  const auto fail_at = [&](Index at) {
    return [&calls, at](Index i) {
      ++calls;
      pause();
      if (i == at) {
        throw std::runtime_error("part");
      }
      return i;
    };
  };
  EXPECT_THROW(share_work(1000, fail_at(5)), std::runtime_error);
  EXPECT_LT(calls, 1000);
  for (const Index at : {0, 5, 999}) {
    EXPECT_THROW(share_in_order(1000, fail_at(at), [](Index, Index) {}), std::runtime_error);
  }
  EXPECT_THROW(share_in_order(
                   100, [](Index i) { return i; },
                   [](Index i, Index) {
                     if (i == 30) {
                       throw std::runtime_error("sum");
                     }
                   }),
               std::runtime_error);
}

// While part 0 is added, a part behind it fails; the others ask for their turn only after part 0.
TEST(SharedWork, AFailureDuringAnAdditionEndsThoseThatWaitForTheirTurn) {
  const Idle three(3);
  std::barrier all_started(4);
  std::latch first_is_added(1);
  std::latch first_has_ended(1);
  const std::thread::id main = std::this_thread::get_id();
  std::atomic<Index> part_of_main = -1;
  const auto compute = [&](Index i) {
    if (std::this_thread::get_id() == main) {
      part_of_main = i;
    }
    all_started.arrive_and_wait();
    if (i == (part_of_main == 1 ? 2 : 1)) {  // a helper's: the count of idle threads shows its end
      first_is_added.wait();
      throw std::runtime_error("part");
    }
    if (i > 0) {
      first_has_ended.wait();
      return std::shared_ptr<void>();
    }
    return std::shared_ptr<void>(&first_has_ended,
                                 [](void* p) { static_cast<std::latch*>(p)->count_down(); });
  };
  const auto add = [&](Index i, const std::shared_ptr<void>&) {
    if (i > 0) {
      return;
    }
    first_is_added.count_down();
    while (!IdleThreads::take()) {
      std::this_thread::yield();
    }
    IdleThreads::add(1);
  };
  EXPECT_THROW(share_in_order(4, compute, add), std::runtime_error);
}

TEST(SharedWork, ThreadsWithoutATaskHelp) {
  const std::atomic<bool> stop = false;
  std::set<std::thread::id> ids;
  std::mutex mutex;
  parallel_for(1, 3, stop, [&](Index) {
    // The others of the team are idle when they have started, which may take its time.
    for (int tries = 0; tries < 10000 && ids.size() < 2; ++tries) {
      share_work(5, [&](Index) {
        {
          const std::lock_guard lock(mutex);
          ids.insert(std::this_thread::get_id());
        }
        pause();
      });
    }
  });
  EXPECT_GE(ids.size(), 2U);
  EXPECT_FALSE(IdleThreads::take());
}

class OneHead : public testing_replay::ReplayTest {};

TEST_F(OneHead, HasTheSameBitsOnManyThreads) {
  ReplayOptions o;
  o.traces = {KVBENCH_TEST_DATA_DIR "/small.h5"};
  o.budgets = {0.25};
  o.layers = {1};
  o.heads = {0};
  o.queries = 32;
  o.recent = 64;
  o.overwrite = true;
  o.out = (folder_ / "out.csv").string();
  int compared = 0;
  for (const Variant& v : expand_algorithms({"all"})) {
    if (v.facts().o_proj || !v.named_scores().empty() || !v.extra_sets().empty()) {
      continue;
    }
    std::vector<std::vector<Fields>> rows;
    for (const int threads : {1, 4}) {
      o.algorithms = {v.name()};
      o.threads = threads;
      run(o);
      rows.push_back(testing_replay::untimed(o.out));
    }
    testing_replay::expect_same(rows[1], rows[0], v.name());
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

}  // namespace
}  // namespace kvbench::test_shared_work
