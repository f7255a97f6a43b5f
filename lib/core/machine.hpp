// Block kernels, written once for GPU and CPU. A GPU runs them as they are meant (core/cuda.cuh); a
// HostMachine runs the same code one thread after another, so that tests on any machine execute
// every line of a kernel and of what drives it.
//
// A kernel is a trivially copyable struct of sizes and of pointers into the machine's memory:
//
//   struct Kernel {
//     static constexpr int kThreads = 256;              // threads of a block, at most 1024
//     struct Shared { double x[32]; };                  // the block's shared memory, <= 48 KiB
//     KVB_HD int phases(Index block) const;             // how often the block's threads meet
//     KVB_HD void run(int phase, Index block, int thread, Shared& shared) const;
//   };
//
// All threads of a block finish a phase before any begins the next. Inside a phase no thread may
// read or write what another writes there (atomic_add aside): a HostMachine that runs threads
// backwards must get the same bits. Local variables do not live from phase to phase; Shared does.
// A phase may be a program of warps (core/warp.hpp), whose lanes meet inside it.
// Blocks of one launch run in any order and do not see each other.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "core/math.hpp"
#include "core/types.hpp"

namespace kvbench {

/// Adds to an integer that threads of any block share; sums of integers have no order.
KVB_HD inline void atomic_add(std::int64_t* to, std::int64_t x) {
#if defined(KVB_DEVICE_CODE)
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(x));
#else
  *to += x;
#endif
}

/// A machine of the CPU that plays a GPU, for tests.
class HostMachine {
 public:
  /// In which order the threads of a block and the blocks run.
  enum class Order { forward, backward };

  explicit HostMachine(Order order = Order::forward) : order_(order) {}

  void* allocate(std::size_t bytes) { return ::operator new (bytes, std::align_val_t{64}); }
  void release(void* p) { ::operator delete (p, std::align_val_t{64}); }
  void copy_in(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }
  void copy_out(void* to, const void* from, std::size_t bytes) { copy_in(to, from, bytes); }
  void fill_zero(void* to, std::size_t bytes) {
    if (bytes > 0) {
      std::memset(to, 0, bytes);
    }
  }
  /// Bytes that one array of scratch should not exceed; work is cut into pieces to keep it.
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  /// For tests of the cutting.
  void set_scratch_bytes(std::size_t bytes) { scratch_bytes_ = bytes; }

  template <class Kernel>
  void launch(const Kernel& kernel, Index blocks) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    static_assert(sizeof(typename Kernel::Shared) <= 48 * 1024);
    const auto shared = std::make_unique<typename Kernel::Shared>();
    for (Index i = 0; i < blocks; ++i) {
      const Index block = order_ == Order::forward ? i : blocks - 1 - i;
      // Shared memory starts with anything in it.
      std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(typename Kernel::Shared));
      const int phases = kernel.phases(block);
      for (int phase = 0; phase < phases; ++phase) {
        for (int t = 0; t < Kernel::kThreads; ++t) {
          kernel.run(phase, block, order_ == Order::forward ? t : Kernel::kThreads - 1 - t,
                     *shared);
        }
      }
    }
  }

 private:
  Order order_;
  std::size_t scratch_bytes_ = std::size_t{1} << 28;
};

/// `count` elements in a machine's memory. The machine must outlive it. Not copyable.
template <class T, class Machine>
class Array {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  Array() = default;
  /// Contents unspecified.
  Array(Machine& machine, Index count) : machine_(&machine), count_(count) {
    if (count > 0) {
      data_ = static_cast<T*>(machine.allocate(bytes()));
    }
  }
  Array(Machine& machine, std::span<const T> from)
      : Array(machine, static_cast<Index>(from.size())) {
    put(from);
  }
  ~Array() {
    if (data_ != nullptr) {
      machine_->release(data_);
    }
  }
  Array(Array&& o) noexcept { swap(o); }
  Array& operator=(Array&& o) noexcept {
    swap(o);
    return *this;
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  Index size() const { return count_; }

  /// From the host; from.size() <= size().
  void put(std::span<const T> from) { machine_->copy_in(data_, from.data(), from.size_bytes()); }
  /// To the host; waits for what was launched before. to.size() <= size().
  void get(std::span<T> to) const { machine_->copy_out(to.data(), data_, to.size_bytes()); }
  void zero() { machine_->fill_zero(data_, bytes()); }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(T); }
  void swap(Array& o) noexcept {
    std::swap(machine_, o.machine_);
    std::swap(data_, o.data_);
    std::swap(count_, o.count_);
  }

  Machine* machine_ = nullptr;
  T* data_ = nullptr;
  Index count_ = 0;
};

}  // namespace kvbench
