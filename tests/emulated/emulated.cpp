// The device of cuda_runtime.h beside this file.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_runtime.h"
#include "fibers.hpp"

namespace emulated {

thread_local dim3 thread_index, block_index, grid_size;

namespace {

std::mutex mutex;  // of what follows
std::map<std::uintptr_t, std::size_t> live;
std::string fault_text;
bool broken = false;  // every call fails from here on, as on a device

void fault(const std::string& what) {
  const std::lock_guard lock(mutex);
  fault_text = what;
  broken = true;
}

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

  bool idle() const { return waiting_.empty(); }
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
  Block::running_block->meet_block(place);
}

void meet_warp(const char* place) {
  Block::running_block->meet_warp(place);
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

// Whether a call may go on: on another stream nothing would keep it in order.
cudaError_t check_stream(cudaStream_t stream) {
  if (stream != cudaStreamPerThread) {
    fault("a call on a stream that is not the thread's own");
  }
  return is_broken() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t launch(dim3 grid, dim3 threads, std::function<void()> lane, const char* name,
                   const std::uint64_t* words, std::size_t count, cudaStream_t stream_of) {
  if (const cudaError_t code = check_stream(stream_of); code != cudaSuccess) {
    return code;
  }
  if (threads.x < 1 || threads.x > kMaxThreads || grid.x < 1 || grid.x > 2147483647U) {
    return cudaErrorInvalidValue;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (is_host_address(words[i]) && !is_live(words[i])) {
      fault("word " + std::to_string(i) + " of the arguments of " + name +
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
      if (const std::string what = stream().block().run(b, static_cast<int>(threads.x), lane);
          !what.empty()) {
        fault(what);
      }
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

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr what, void*) {
  const std::lock_guard lock(emulated::mutex);
  if (what == cudaMemPoolAttrUsedMemHigh) {
    card().max_live_bytes = card().live_bytes;
  }
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr what, void* value) {
  const std::lock_guard lock(emulated::mutex);
  const std::uint64_t bytes =
      what == cudaMemPoolAttrUsedMemHigh ? card().max_live_bytes : card().live_bytes;
  std::memcpy(value, &bytes, sizeof bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  emulated::drain();
  return emulated::is_broken() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(emulated::mutex);
  *total = card().bytes;
  *free = card().bytes - card().live_bytes;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = card().has_pool ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** to, std::size_t bytes) {
  emulated::stream();  // outlives what its thread makes from here on
  *to = card().pins ? std::malloc(bytes) : nullptr;
  return *to == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* p) {
  if (!emulated::stream().idle()) {
    emulated::fault("a free of pinned memory without waiting");
  }
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** to, std::size_t bytes) {
  if (emulated::is_broken()) {
    return cudaErrorLaunchFailure;
  }
  const std::lock_guard lock(emulated::mutex);
  if (card().live_bytes + bytes > card().bytes) {
    return cudaErrorMemoryAllocation;
  }
  if (posix_memalign(to, 256, bytes) != 0) {  // no byte more: AddressSanitizer watches the end
    return cudaErrorMemoryAllocation;
  }
  std::memset(*to, 0x7F, bytes);
  emulated::live[reinterpret_cast<std::uintptr_t>(*to)] = bytes;
  card().live_bytes += bytes;
  card().max_live_bytes = std::max(card().max_live_bytes, card().live_bytes);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream) {
  if (!card().has_pool) {
    return cudaErrorNotSupported;
  }
  const cudaError_t code = emulated::check_stream(stream);
  return code == cudaSuccess ? cudaMalloc(to, bytes) : code;
}

static void free_now(void* p) {
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
}

cudaError_t cudaFree(void* p) {
  if (!emulated::stream().idle()) {
    emulated::fault("a free of memory in use");
  }
  free_now(p);
  return emulated::is_broken() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  if (stream != cudaStreamPerThread) {
    return emulated::check_stream(stream);
  }
  emulated::stream().add([p] { free_now(p); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (const cudaError_t code = emulated::check_stream(stream); code != cudaSuccess) {
    return code;
  }
  const bool in = kind == cudaMemcpyHostToDevice;
  const auto there = reinterpret_cast<std::uintptr_t>(in ? to : from);
  if (!emulated::is_live(there) || !emulated::is_live(there + bytes - 1) ||
      emulated::is_live(reinterpret_cast<std::uintptr_t>(in ? from : to))) {
    return cudaErrorInvalidValue;
  }
  emulated::stream().add([to, from, bytes] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (const cudaError_t code = emulated::check_stream(stream); code != cudaSuccess) {
    return code;
  }
  const auto there = reinterpret_cast<std::uintptr_t>(to);
  if (!emulated::is_live(there) || !emulated::is_live(there + bytes - 1)) {
    return cudaErrorInvalidValue;
  }
  emulated::stream().add([to, value, bytes] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream != cudaStreamPerThread) {
    return emulated::check_stream(stream);
  }
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
    case cudaErrorNotSupported: return "operation not supported";
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
