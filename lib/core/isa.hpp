// Instruction sets of the CPU kernels. One program has each kernel for AVX2 (16 registers of 256
// bits) and for AVX-512 (32 of 512), and selects when it starts. Tiles differ, the order of every
// sum does not: results have the same bits.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/types.hpp"

// prefer-vector-width is GCC's; Clang vectorises with 256 bits otherwise, which is correct too.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVB_AVX512 \
  [[gnu::target("avx512f,avx512cd,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]]
#elif defined(__x86_64__)
#define KVB_AVX512 [[gnu::target("avx512f,avx512cd,avx512bw,avx512dq,avx512vl")]]
#else
#define KVB_AVX512
#endif

namespace kvbench {

/// avx2 is the program's baseline: on other processors than x86-64, theirs.
enum class Isa : std::uint8_t { avx2, avx512 };

constexpr std::string_view name(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : "avx2";
}

/// Whether this processor can run its kernels.
bool runs(Isa isa);

/// The instruction set of this process: the last that it can run, or that of the environment
/// variable KVBENCH_ISA. Throws InputError if that names none, or one that the processor lacks.
Isa isa();

/// Replaces isa(), for tests and benchmarks. Must not be called while kernels run.
void set_isa(Isa isa);

/// Tile of sums that stays in registers: two vectors of columns. With AVX2, eight sums hide the
/// latency of two FMA units and leave registers for operands.
template <Isa isa>
struct Tile {
  static constexpr Index kRows = isa == Isa::avx512 ? 8 : 4;
  static constexpr Index kLongRows = isa == Isa::avx512 ? 8 : 6;  ///< of sums that are no sums yet
  template <class T>
  static constexpr Index kCols = (isa == Isa::avx512 ? 128 : 64) / sizeof(T);
};

inline constexpr Index kMostTileRows = Tile<Isa::avx512>::kRows;
template <class T>
inline constexpr Index kMostTileCols = Tile<Isa::avx512>::kCols<T>;

/// Returns use(Tile<isa()>()). `use` is compiled for the baseline.
template <class Use>
decltype(auto) with_tile(const Use& use) {
  return isa() == Isa::avx512 ? use(Tile<Isa::avx512>()) : use(Tile<Isa::avx2>());
}

template <class Kernel, class... Args>
KVB_AVX512 void run_avx512(Args... args) {
  Kernel::run(Tile<Isa::avx512>(), args...);
}

template <class Kernel, class... Args>
void run_avx2(Args... args) {
  Kernel::run(Tile<Isa::avx2>(), args...);
}

/// Calls Kernel::run(Tile<isa()>(), args...), compiled for that set. `run` must be static and
/// [[gnu::always_inline]]; what it calls and what is not inlined is compiled for the baseline.
template <class Kernel, class... Args>
void run_kernel(Args... args) {
  isa() == Isa::avx512 ? run_avx512<Kernel>(args...) : run_avx2<Kernel>(args...);
}

}  // namespace kvbench
