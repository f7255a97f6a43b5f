// The device of cuda_runtime.h beside this file.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

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

thread_local dim3 thread_index, block_index, grid_size;

namespace {

constexpr int kMostThreads = 1024;
constexpr int kLanes = 32;
constexpr std::size_t kStack = 64 * 1024;
constexpr std::size_t kGuard = 4096;

std::mutex mutex;  // of what follows
std::map<std::uintptr_t, std::size_t> live;
std::string fault_text;
bool broken = false;  // every call fails from here on, as on a device

std::string fault_of(const std::string& what) {
  const std::lock_guard lock(mutex);
  fault_text = what;
  broken = true;
  return what;
}

bool differ(const char* a, const char* b) {
  return a != b && std::strcmp(a, b) != 0;
}

// What a warp's meeting knows.
struct Warp {
  int alive = 0;
  int waiting = 0;
  unsigned meetings = 0;
  const char* place = nullptr;
  std::array<std::array<void*, kLanes>, 2> own{};
};

/// The threads of one block, each on a stack of its own.
class Block {
 public:
  Block() {
    const std::size_t bytes = kMostThreads * (kStack + kGuard);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      std::perror("emulated device: stacks");
      std::abort();
    }
    stacks_ = static_cast<char*>(p);
    for (int i = 0; i < kMostThreads; ++i) {
      mprotect(stacks_ + static_cast<std::size_t>(i) * (kStack + kGuard), kGuard, PROT_NONE);
    }
  }
  ~Block() { munmap(stacks_, kMostThreads * (kStack + kGuard)); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // False: a fault ended it.
  bool run(unsigned index, int threads, const std::function<void()>& lane) {
    block_index = dim3(index);
    lane_ = &lane;
    threads_ = threads;
    at_barrier_ = 0;
    barrier_ = nullptr;
    failed_ = false;
    alive_ = threads;
    warps_.assign(static_cast<std::size_t>((threads + kLanes - 1) / kLanes), {});
    for (int t = 0; t < threads; ++t) {
      state_[static_cast<std::size_t>(t)] = State::ready;
      ++warps_[static_cast<std::size_t>(t / kLanes)].alive;
      prepare(t);
    }
    const bool backward = index % 2 == 1;
    const auto warps = static_cast<int>(warps_.size());
    while (alive_ > 0) {
      bool went_on = false;
      for (int w = 0; w < warps; ++w) {
        const int warp = backward ? warps - 1 - w : w;
        while (pass(warp, backward)) {
          went_on = true;
        }
        if (failed_) {
          return false;
        }
      }
      if (!went_on) {
        return complain();
      }
    }
    return true;
  }

  void meet_block(const char* place) {
    if (at_barrier_ > 0 && differ(barrier_, place)) {
      stop(std::string("threads meet at ") + barrier_ + " and at " + place);
    }
    barrier_ = place;
    ++at_barrier_;
    wait(State::at_block);
  }

  void* const* meet_warp(const char* place, void* own, bool whole) {
    Warp& warp = warps_[static_cast<std::size_t>(running_ / kLanes)];
    if (warp.waiting > 0 && differ(warp.place, place)) {
      stop(std::string("lanes meet at ") + warp.place + " and at " + place);
    }
    if (whole && warp.alive != kLanes) {
      stop(std::string(place) + ": not a whole warp");
    }
    warp.place = place;
    auto& slots = warp.own[warp.meetings % 2];
    slots[static_cast<std::size_t>(running_ % kLanes)] = own;
    ++warp.waiting;
    wait(State::at_warp);
    return slots.data();
  }

  [[noreturn]] void stop(const std::string& what) {
    fault_of("thread " + std::to_string(running_) + " of block " + std::to_string(block_index.x) +
             ": " + what);
    failed_ = true;
    void* never = nullptr;
    emulated_switch(&never, scheduler_);
    std::abort();
  }

 private:
  enum class State : char { ready, at_block, at_warp, ended };

  static void enter();

  void prepare(int t) {
    char* end = stacks_ + static_cast<std::size_t>(t + 1) * (kStack + kGuard);
    auto** top = reinterpret_cast<void**>(end) - 1;  // as if enter() had been called
    *top = nullptr;
    *--top = reinterpret_cast<void*>(&Block::enter);
    for (int i = 0; i < 6; ++i) {
      *--top = nullptr;
    }
    stack_[static_cast<std::size_t>(t)] = top;
  }

  // Runs the lanes of a warp that can go on; whether any could.
  bool pass(int warp, bool backward) {
    const int begin = warp * kLanes;
    const int count = std::min(kLanes, threads_ - begin);
    bool any = false;
    for (int i = 0; i < count && !failed_; ++i) {
      const int t = begin + (backward ? count - 1 - i : i);
      if (state_[static_cast<std::size_t>(t)] == State::ready) {
        any = true;
        running_ = t;
        thread_index = dim3(static_cast<unsigned>(t));
        emulated_switch(&scheduler_, stack_[static_cast<std::size_t>(t)]);
      }
    }
    Warp& own = warps_[static_cast<std::size_t>(warp)];
    if (own.waiting > 0 && own.waiting == own.alive) {
      own.waiting = 0;
      ++own.meetings;
      release(begin, begin + count, State::at_warp);
      any = true;
    }
    if (alive_ > 0 && at_barrier_ == alive_) {
      at_barrier_ = 0;
      release(0, threads_, State::at_block);
      any = true;
    }
    return any && !failed_;
  }

  void release(int begin, int end, State from) {
    for (int t = begin; t < end; ++t) {
      if (state_[static_cast<std::size_t>(t)] == from) {
        state_[static_cast<std::size_t>(t)] = State::ready;
      }
    }
  }

  void wait(State state) {
    state_[static_cast<std::size_t>(running_)] = state;
    emulated_switch(&stack_[static_cast<std::size_t>(running_)], scheduler_);
  }

  bool complain() {
    std::string what = "threads wait for each other:";
    for (int t = 0; t < threads_; ++t) {
      const State s = state_[static_cast<std::size_t>(t)];
      if (s == State::at_block || s == State::at_warp) {
        what +=
            " " + std::to_string(t) + " at " +
            (s == State::at_block ? barrier_ : warps_[static_cast<std::size_t>(t / kLanes)].place);
        if (what.size() > 300) {
          what += " ...";
          break;
        }
      }
    }
    fault_of("block " + std::to_string(block_index.x) + ": " + what);
    return false;
  }

  char* stacks_;
  std::array<void*, kMostThreads> stack_{};
  std::array<State, kMostThreads> state_{};
  std::vector<Warp> warps_;
  const std::function<void()>* lane_ = nullptr;
  void* scheduler_ = nullptr;
  const char* barrier_ = nullptr;
  int threads_ = 0;
  int alive_ = 0;
  int at_barrier_ = 0;
  int running_ = 0;
  bool failed_ = false;
};

// What each CPU thread's stream has not yet come to. A thread that ends leaves none behind.
class Stream {
 public:
  Stream() {
    const std::lock_guard lock(streams_mutex);
    streams.push_back(this);
  }
  ~Stream() {
    finish();
    const std::lock_guard lock(streams_mutex);
    streams.erase(std::find(streams.begin(), streams.end(), this));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  inline static std::mutex streams_mutex;
  inline static std::vector<Stream*> streams;

  void add(std::function<void()> work) { waiting_.push_back(std::move(work)); }
  void finish() {
    while (!waiting_.empty()) {
      const auto work = std::move(waiting_.front());
      waiting_.pop_front();
      work();
    }
  }
  Block& block() {
    if (block_ == nullptr) {
      block_ = std::make_unique<Block>();
    }
    return *block_;
  }

 private:
  std::deque<std::function<void()>> waiting_;
  std::unique_ptr<Block> block_;
};

Stream& stream() {
  static thread_local Stream own;
  return own;
}

Block* running_block() {
  return &stream().block();
}

void Block::enter() {
  Block* self = running_block();
  (*self->lane_)();
  self->state_[static_cast<std::size_t>(self->running_)] = State::ended;
  --self->alive_;
  --self->warps_[static_cast<std::size_t>(self->running_ / kLanes)].alive;
  void* never = nullptr;
  emulated_switch(&never, self->scheduler_);
  std::abort();
}

bool is_broken() {
  const std::lock_guard lock(mutex);
  return broken;
}

// The live memory that holds `address`, or none.
bool is_live(std::uintptr_t address) {
  const std::lock_guard lock(mutex);
  auto it = live.upper_bound(address);
  if (it == live.begin()) {
    return false;
  }
  --it;
  return address <= it->first + it->second;  // one past the end is an address, too
}

// Whether the host has memory there. A pair of integers may look like an address, but hardly like
// one that is mapped.
bool is_host_address(std::uint64_t word) {
  if (word < 0x550000000000ULL || word > 0x7fffffffffffULL) {
    return false;  // where Linux puts heaps, libraries and stacks
  }
  constexpr std::uint64_t kPage = 4096;
  return msync(reinterpret_cast<void*>(word / kPage * kPage), 1, MS_ASYNC) == 0;
}

}  // namespace

void meet_block(const char* place) {
  running_block()->meet_block(place);
}

void* const* meet_warp(const char* place, void* own, bool whole) {
  return running_block()->meet_warp(place, own, whole);
}

void fault(const std::string& what) {
  running_block()->stop(what);
}

Card& card() {
  static Card one;
  return one;
}

std::string last_fault() {
  const std::lock_guard lock(mutex);
  return fault_text;
}

void drain() {
  const std::lock_guard lock(Stream::streams_mutex);
  for (Stream* s : Stream::streams) {
    s->finish();
  }
}

void reset_fault() {
  drain();  // while it is broken no kernel runs
  const std::lock_guard lock(mutex);
  fault_text.clear();
  broken = false;
}

cudaError_t launch(dim3 grid, dim3 threads, std::function<void()> lane, const char* name,
                   const std::uint64_t* words, std::size_t count) {
  if (is_broken()) {
    return cudaErrorLaunchFailure;
  }
  if (threads.x < 1 || threads.x > kMostThreads || grid.x < 1 || grid.x > 2147483647U) {
    return cudaErrorInvalidValue;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (is_host_address(words[i]) && !is_live(words[i])) {
      fault_of("word " + std::to_string(i) + " of the arguments of " + name +
               " is an address that is not in live device memory");
      return cudaErrorLaunchFailure;
    }
  }
  {
    const std::lock_guard lock(mutex);
    ++card().launches;
  }
  stream().add([grid, threads, lane = std::move(lane)] {
    for (unsigned b = 0; b < grid.x && !is_broken(); ++b) {
      grid_size = grid;
      stream().block().run(b, static_cast<int>(threads.x), lane);
    }
  });
  return cudaSuccess;
}

}  // namespace emulated

using emulated::card;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = card().devices;
  return card().driver_too_old ? cudaErrorInsufficientDriver
         : card().devices == 0 ? cudaErrorNoDevice
                               : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  std::snprintf(to->name, sizeof to->name, "emulated device");
  to->major = 9;
  to->minor = 0;
  return device >= 0 && device < card().devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < card().devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaSetDeviceFlags(unsigned) {
  return cudaErrorSetOnActiveProcess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(emulated::mutex);
  *total = card().bytes;
  *free = card().bytes - card().live_bytes;
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t) {
  const std::lock_guard lock(emulated::mutex);
  if (emulated::broken) {
    return cudaErrorLaunchFailure;
  }
  if (bytes > card().bytes - card().live_bytes) {
    return cudaErrorMemoryAllocation;
  }
  *to = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*to == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  std::memset(*to, 0xA5, bytes);
  emulated::live[reinterpret_cast<std::uintptr_t>(*to)] = bytes;
  card().live_bytes += bytes;
  card().most_live_bytes = std::max(card().most_live_bytes, card().live_bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
  emulated::stream().add([p] {
    const std::lock_guard lock(emulated::mutex);
    const auto it = emulated::live.find(reinterpret_cast<std::uintptr_t>(p));
    if (it == emulated::live.end()) {
      emulated::fault_text = "a free of what is not live";
      emulated::broken = true;
      return;
    }
    std::memset(p, 0xDD, it->second);
    card().live_bytes -= it->second;
    emulated::live.erase(it);
    std::free(p);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  if (emulated::is_broken()) {
    return cudaErrorLaunchFailure;
  }
  const bool in = kind == cudaMemcpyHostToDevice;
  const auto there = reinterpret_cast<std::uintptr_t>(in ? to : from);
  if (!emulated::is_live(there) || !emulated::is_live(there + bytes - 1) ||
      emulated::is_live(reinterpret_cast<std::uintptr_t>(in ? from : to))) {
    return cudaErrorInvalidValue;
  }
  if (in) {
    const char* begin = static_cast<const char*>(from);
    emulated::stream().add([to, copy = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    });
    return cudaSuccess;
  }
  emulated::stream().add([to, from, bytes] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (emulated::is_broken()) {
    return cudaErrorLaunchFailure;
  }
  if (!emulated::is_live(reinterpret_cast<std::uintptr_t>(to))) {
    return cudaErrorInvalidValue;
  }
  emulated::stream().add([to, value, bytes] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) {
  emulated::stream().finish();
  return emulated::is_broken() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "driver version is insufficient";
    case cudaErrorNoDevice: return "no device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available";
    case cudaErrorLaunchFailure: {
      static thread_local std::string text;
      text = "unspecified launch failure (" + emulated::last_fault() + ")";
      return text.c_str();
    }
    case cudaErrorSetOnActiveProcess: return "cannot be set while the device is active";
  }
  return "an error";
}
