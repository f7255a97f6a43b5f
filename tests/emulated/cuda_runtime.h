// In place of CUDA's header: as much of the runtime as lib/gpu calls, carried out on a CPU
// (emulated.cpp), so that tests run device code without a device. What a real one would do wrong
// shows here:
//
// - Threads of a block are fibers. They run until they meet (__syncthreads, __syncwarp); lanes that
//   do not meet, or at different places, end the launch with an error. In which order they run
//   changes from meeting to meeting.
// - Shared memory begins with garbage in every block (shared_memory.cpp).
// - Copies from the host, memsets, launches and frees of a stream wait until something waits for
//   them, so what is read without waiting is old, and what is overwritten without waiting is never
//   copied. Calls on another stream than the thread's own
//   are refused.
// - Memory is counted, begins with garbage and ends so. A kernel that holds an address outside live
//   device memory is refused when launched, as is a free of what is not live. Under
//   AddressSanitizer every access outside of an allocation is seen.
//
// Not shown: memory order between lanes that do not meet, speed, and what the compiler makes of
// the code.
#pragma once

#define KVBENCH_EMULATED_DEVICE

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one at a time

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorInsufficientDriver,
  cudaErrorNoDevice,
  cudaErrorInvalidDevice,
  cudaErrorNoKernelImageForDevice,
  cudaErrorLaunchFailure,
  cudaErrorSetOnActiveProcess,
  cudaErrorNotSupported,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
enum cudaMemPoolAttr {
  cudaMemPoolAttrReleaseThreshold,
  cudaMemPoolAttrUsedMemCurrent,
  cudaMemPoolAttrUsedMemHigh,
};
enum cudaDeviceAttr { cudaDevAttrMemoryPoolsSupported };
inline constexpr unsigned cudaDeviceScheduleBlockingSync = 4;

using cudaStream_t = struct EmulatedStream*;
using cudaMemPool_t = struct EmulatedPool*;
#define cudaStreamPerThread (reinterpret_cast<cudaStream_t>(2))

struct cudaDeviceProp {
  char name[64];
  int major, minor;
};
struct cudaFuncAttributes {
  int binaryVersion;
};

namespace emulated {

/// Where a lane stands. Set before it goes on.
extern thread_local dim3 thread_index, block_index, grid_size;

/// All threads of the block (or lanes of the warp) that have not ended meet here; `place` tells
/// meetings apart.
void meet_block(const char* place);
void meet_warp(const char* place);

/// Fills what kernels declared __shared__ with garbage.
void fill_shared_memory();

/// Runs `lane` for every thread of every block, when the stream comes to it. `name`: of the types
/// of its arguments; `words`: they themselves, which may be addresses.
cudaError_t launch(dim3 grid, dim3 threads, std::function<void()> lane, const char* name,
                   const std::uint64_t* words, std::size_t count, cudaStream_t stream);

/// The device: tests set what it is, while nothing runs on it.
struct Card {
  int devices = 1;
  bool driver_too_old = false;
  bool has_kernels = true;  ///< that this program was compiled for it
  bool has_pool = true;     ///< that it allocates in the order of a stream
  bool pins = true;         ///< that the host has memory to pin
  std::size_t bytes = std::size_t{4} << 30;
  std::size_t live_bytes = 0;  ///< allocated and not freed
  std::size_t max_live_bytes = 0;
  std::int64_t launches = 0;
};
Card& card();

/// What ended the last launch that failed.
std::string last_fault();

/// Lets all streams come to their ends; no other thread may use the device meanwhile.
void drain();

/// Forgets an error that a real device would keep, and what streams were still to do but free.
void reset_fault();

}  // namespace emulated

#define threadIdx emulated::thread_index
#define blockIdx emulated::block_index
#define gridDim emulated::grid_size

// A place of its own for each line.
#define EMULATED_TEXT(x) #x
#define EMULATED_PLACE(what, file, line) what " at " file ":" EMULATED_TEXT(line)
#define __syncthreads() emulated::meet_block(EMULATED_PLACE("__syncthreads", __FILE__, __LINE__))
#define __syncwarp() emulated::meet_warp(EMULATED_PLACE("__syncwarp", __FILE__, __LINE__))

template <class T>
T atomicAdd(T* to, T x) {
  return std::exchange(*to, *to + x);
}

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t bytes);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* value);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int device);
cudaError_t cudaMallocHost(void** to, std::size_t bytes);
cudaError_t cudaFreeHost(void* p);
cudaError_t cudaMalloc(void** to, std::size_t bytes);
cudaError_t cudaFree(void* p);
cudaError_t cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t code);

template <class Function>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, Function*) {
  *to = {90};
  return emulated::card().has_kernels ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}

template <class... Arguments>
cudaError_t cudaLaunchKernel(void (*function)(Arguments...), dim3 grid, dim3 threads,
                             void** arguments, std::size_t, cudaStream_t stream) {
  static_assert((std::is_trivially_copyable_v<Arguments> && ...));
  static_assert((sizeof(Arguments) + ... + 0) <= 4096, "what a launch can carry");
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    std::tuple<Arguments...> copy{*static_cast<Arguments*>(arguments[i])...};
    std::vector<std::uint64_t> words;
    const auto add = [&](auto argument) {
      __builtin_clear_padding(&argument);  // old addresses may lie there
      for (std::size_t at = 0; at + 8 <= sizeof argument; at += 8) {
        std::memcpy(&words.emplace_back(), reinterpret_cast<const char*>(&argument) + at, 8);
      }
    };
    (add(std::get<i>(copy)), ...);
    return emulated::launch(
        grid, threads, [function, copy] { std::apply(function, copy); }, typeid(copy).name(),
        words.data(), words.size(), stream);
  }
  (std::index_sequence_for<Arguments...>{});
}
