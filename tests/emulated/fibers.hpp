// The threads of one block of the emulated device, each a fiber on a stack of its own.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "cuda_runtime.h"

// Saves what the caller of a function may rely on, and goes on where `to` was saved.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.globl emulated_switch
.type emulated_switch, @function
emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulated_switch, .-emulated_switch
)");

namespace emulated {

constexpr int kMaxThreads = 1024;
constexpr int kLanes = 32;
constexpr std::size_t kGuard = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStack = 256 * 1024;  // frames have red zones
#else
constexpr std::size_t kStack = 64 * 1024;
#endif

// AddressSanitizer is told of every switch between stacks, before and after it. `save`: where its
// own state of the stack that is left goes; null: that stack is not returned to.
inline void before_switch([[maybe_unused]] void** save, [[maybe_unused]] const void* bottom,
                          [[maybe_unused]] std::size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(save, bottom, size);
#endif
}
inline void after_switch([[maybe_unused]] void* saved, [[maybe_unused]] const void** bottom,
                         [[maybe_unused]] std::size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(saved, bottom, size);
#endif
}

inline bool differ(const char* a, const char* b) {
  return a != b && std::strcmp(a, b) != 0;
}

// What a warp's meeting knows.
struct Warp {
  int alive = 0;
  int ready = 0;
  int waiting = 0;
  const char* place = nullptr;
};

/// The threads of one block, each on a stack of its own.
class Block {
 public:
  Block() {
    const std::size_t bytes = kMaxThreads * (kStack + kGuard);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      std::perror("emulated device: stacks");
      std::abort();
    }
    stacks_ = static_cast<char*>(p);
    for (int i = 0; i < kMaxThreads; ++i) {
      mprotect(stacks_ + static_cast<std::size_t>(i) * (kStack + kGuard), kGuard, PROT_NONE);
    }
  }
  ~Block() { munmap(stacks_, kMaxThreads * (kStack + kGuard)); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  /// Runs the block; what went wrong, or "".
  std::string run(unsigned index, int threads, const std::function<void()>& lane) {
    static std::mutex one_at_a_time;  // they share the kernels' shared memory
    const std::lock_guard lock(one_at_a_time);
    fill_shared_memory();
    block_index = dim3(index);
    lane_ = &lane;
    threads_ = threads;
    at_barrier_ = 0;
    barrier_ = nullptr;
    fault_.clear();
    running_block = this;
    alive_ = threads;
    warps_.assign((threads + kLanes - 1) / kLanes, {});
    for (int t = 0; t < threads; ++t) {
      ++warps_[t / kLanes].alive;
      set_ready(t);
      prepare(t);
    }
    const auto warps = static_cast<int>(warps_.size());
    while (alive_ > 0) {
      bool went_on = false;
      const Order order(random_, warps);
      for (int w = 0; w < warps; ++w) {
        const int warp = order(w);
        while (warps_[warp].ready > 0 && fault_.empty()) {
          pass(warp);
          went_on = true;
        }
      }
      if (fault_.empty() && !went_on) {
        fault_ = "block " + std::to_string(index) + ": " + who_waits();
      }
      if (!fault_.empty()) {
        clear_stacks();
        break;
      }
    }
    return fault_;
  }

  void meet_block(const char* place) {
    if (at_barrier_ > 0 && differ(barrier_, place)) {
      stop("threads", barrier_, place);
    }
    barrier_ = place;
    ++at_barrier_;
    wait(State::at_block);
  }

  void meet_warp(const char* place) {
    Warp& warp = warps_[running_ / kLanes];
    if (warp.waiting > 0 && differ(warp.place, place)) {
      stop("lanes", warp.place, place);
    }
    warp.place = place;
    ++warp.waiting;
    wait(State::at_warp);
  }

  /// The block of the fiber that calls.
  inline static thread_local Block* running_block = nullptr;

 private:
  // Nothing on the fiber's stack may own memory: it is not returned to.
  [[noreturn]] void stop(const char* who, const char* here, const char* there) {
    fault_ = "thread " + std::to_string(running_) + " of block " + std::to_string(block_index.x) +
             ": " + who + " meet at " + here + " and at " + there;
    leave(/*for_good=*/true);
    std::abort();
  }

  enum class State : char { ready, at_block, at_warp, ended };

  // Forward or backward from anywhere: whoever reads what another thread has yet to write meets an
  // order in which it is not there.
  class Order {
   public:
    Order(std::minstd_rand& random, int count)
        : count_(count), begin_(static_cast<int>(random()) % count), backward_(random() % 2 == 1) {}
    int operator()(int i) const {
      const int at = begin_ + i < count_ ? begin_ + i : begin_ + i - count_;
      return backward_ ? count_ - 1 - at : at;
    }

   private:
    int count_;
    int begin_;
    bool backward_;
  };

  // Where a thread begins.
  __attribute__((no_sanitize_address)) static void enter() {
    Block* self = running_block;
    after_switch(nullptr, &self->scheduler_bottom_, &self->scheduler_size_);
    (*self->lane_)();
    self->state_[self->running_] = State::ended;
    --self->alive_;
    --self->warps_[self->running_ / kLanes].alive;
    self->leave(/*for_good=*/true);
    std::abort();
  }

  void prepare(int t) {
    char* end = stacks_ + static_cast<std::size_t>(t + 1) * (kStack + kGuard);
    auto** top = reinterpret_cast<void**>(end) - 1;  // as if enter() had been called
    *top = nullptr;
    *--top = reinterpret_cast<void*>(&Block::enter);
    for (int i = 0; i < 6; ++i) {
      *--top = nullptr;
    }
    stack_[t] = top;
  }

  char* stack_of(int t) const {
    return stacks_ + static_cast<std::size_t>(t) * (kStack + kGuard) + kGuard;
  }

  // The scheduler lets thread t run until it waits or ends.
  __attribute__((no_sanitize_address)) void resume(int t) {
    void* saved = nullptr;
    before_switch(&saved, stack_of(t), kStack);
    emulated_switch(&scheduler_, stack_[t]);
    after_switch(saved, nullptr, nullptr);
  }

  // The running thread goes back to the scheduler.
  __attribute__((no_sanitize_address)) void leave(bool for_good) {
    void* saved = nullptr;
    before_switch(for_good ? nullptr : &saved, scheduler_bottom_, scheduler_size_);
    emulated_switch(&stack_[running_], scheduler_);
    after_switch(saved, &scheduler_bottom_, &scheduler_size_);
  }

  // Threads that a fault leaves where they stood have red zones on their stacks.
  void clear_stacks() {
#if defined(__SANITIZE_ADDRESS__)
    for (int t = 0; t < threads_; ++t) {
      __asan_unpoison_memory_region(stack_of(t), kStack);
    }
#endif
  }

  // Runs the lanes of a warp that can go on.
  void pass(int warp) {
    Warp& own = warps_[warp];
    const int begin = warp * kLanes;
    const int count = std::min(kLanes, threads_ - begin);
    const Order order(random_, count);
    for (int i = 0; i < count && fault_.empty(); ++i) {
      const int t = begin + order(i);
      if (state_[t] == State::ready) {
        --own.ready;
        running_ = t;
        thread_index = dim3(static_cast<unsigned>(t));
        resume(t);
      }
    }
    if (own.waiting > 0 && own.waiting == own.alive) {
      own.waiting = 0;
      release(begin, begin + count, State::at_warp);
    }
    if (alive_ > 0 && at_barrier_ == alive_) {
      at_barrier_ = 0;
      release(0, threads_, State::at_block);
    }
  }

  void release(int begin, int end, State from) {
    for (int t = begin; t < end; ++t) {
      if (state_[t] == from) {
        set_ready(t);
      }
    }
  }

  void set_ready(int t) {
    state_[t] = State::ready;
    ++warps_[t / kLanes].ready;
  }

  void wait(State state) {
    state_[running_] = state;
    leave(/*for_good=*/false);
  }

  std::string who_waits() const {
    std::string what = "threads wait for each other:";
    for (int t = 0; t < threads_; ++t) {
      const State s = state_[t];
      if (s == State::at_block || s == State::at_warp) {
        what += " " + std::to_string(t) + " at " +
                (s == State::at_block ? barrier_ : warps_[t / kLanes].place);
        if (what.size() > 300) {
          what += " ...";
          break;
        }
      }
    }
    return what;
  }

  char* stacks_;
  std::array<void*, kMaxThreads> stack_{};
  std::array<State, kMaxThreads> state_{};
  std::vector<Warp> warps_;
  const std::function<void()>* lane_ = nullptr;
  void* scheduler_ = nullptr;
  const void* scheduler_bottom_ = nullptr;  // of its stack
  std::size_t scheduler_size_ = 0;
  std::minstd_rand random_;
  const char* barrier_ = nullptr;
  int threads_ = 0;
  int alive_ = 0;
  int at_barrier_ = 0;
  int running_ = 0;
  std::string fault_;
};

}  // namespace emulated
