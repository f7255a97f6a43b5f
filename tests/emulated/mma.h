// In place of CUDA's header: products of 16 x 16 tiles by the 32 lanes of a warp, each of which
// holds eight elements of every fragment. A lane's elements are those of another place than CUDA's,
// which are not documented; code may only treat all elements of fragments of one kind alike.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };

// Elements are float whatever T is: none but the operations here may read halves.
template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  static_assert(m == 16 && n == 16 && k == 16);
  static constexpr int num_elements = 8;
  float x[num_elements];
};

namespace detail {

// Element e of a lane: row-major through the tile.
inline int place(int e) {
  return static_cast<int>(threadIdx.x % 32) * 8 + e;
}

// All 32 lanes must call with the same address and stride.
inline void check(const char* what, const void* address, unsigned stride, unsigned unit) {
  struct Call {
    const void* address;
    unsigned stride;
  } own{address, stride};
  void* const* all = emulated::meet_warp(what, &own, true);
  for (int lane = 0; lane < 32; ++lane) {
    const auto& other = *static_cast<const Call*>(all[lane]);
    if (other.address != address || other.stride != stride) {
      emulated::fault(std::string(what) + ": lanes with different arguments");
    }
  }
  if (reinterpret_cast<std::uintptr_t>(address) % 32 != 0 || stride % unit != 0) {
    emulated::fault(std::string(what) + ": not on a boundary of 32 bytes, or an odd stride");
  }
  emulated::meet_warp(what, nullptr, true);  // `own` must live until all have looked
}

// Truncated to float: how tensor cores may round a sum, at the worst.
inline float truncated(double x) {
  auto out = static_cast<float>(x);
  if (std::abs(static_cast<double>(out)) > std::abs(x)) {
    out = std::nextafter(out, 0.0F);
  }
  return out;
}

}  // namespace detail

template <class Use, class Layout>
void load_matrix_sync(fragment<Use, 16, 16, 16, __half, Layout>& to, const __half* from,
                      unsigned stride) {
  detail::check("load_matrix_sync", from, stride, 8);
  for (int e = 0; e < to.num_elements; ++e) {
    const int row = detail::place(e) / 16;
    const int column = detail::place(e) % 16;
    to.x[e] = __half2float(
        std::is_same_v<Layout, row_major>
            ? from[static_cast<unsigned>(row) * stride + static_cast<unsigned>(column)]
            : from[static_cast<unsigned>(column) * stride + static_cast<unsigned>(row)]);
  }
}

template <class Use>
void fill_fragment(fragment<Use, 16, 16, 16, float>& to, float value) {
  for (float& x : to.x) {
    x = value;
  }
}

template <class LayoutA, class LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float>& to,
              const fragment<matrix_a, 16, 16, 16, __half, LayoutA>& a,
              const fragment<matrix_b, 16, 16, 16, __half, LayoutB>& b,
              const fragment<accumulator, 16, 16, 16, float>& c) {
  using A = fragment<matrix_a, 16, 16, 16, __half, LayoutA>;
  using B = fragment<matrix_b, 16, 16, 16, __half, LayoutB>;
  const void* own[2] = {&a, &b};
  void* const* all = emulated::meet_warp("mma_sync", own, true);
  emulated::card().products += threadIdx.x % 32 == 0 ? 1 : 0;
  float left[16];  // this lane's eight elements are of one row
  const int row = detail::place(0) / 16;
  for (int t = 0; t < 16; ++t) {
    const int at = row * 16 + t;
    left[t] = static_cast<const A*>(static_cast<const void**>(all[at / 8])[0])->x[at % 8];
  }
  double sums[8];
  std::copy(c.x, c.x + 8, sums);
  const int column = detail::place(0) % 16;
  for (int t = 0; t < 16; ++t) {
    const int at = t * 16 + column;
    const float* right = static_cast<const B*>(static_cast<const void**>(all[at / 8])[1])->x;
    for (int e = 0; e < 8; ++e) {
      sums[e] += static_cast<double>(left[t]) * static_cast<double>(right[e]);
    }
  }
  emulated::meet_warp("mma_sync", nullptr, true);
  for (int e = 0; e < to.num_elements; ++e) {
    to.x[e] = detail::truncated(sums[e]);
  }
}

inline void store_matrix_sync(float* to, const fragment<accumulator, 16, 16, 16, float>& from,
                              unsigned stride, layout_t layout) {
  detail::check("store_matrix_sync", to, stride, 4);
  for (int e = 0; e < from.num_elements; ++e) {
    const auto row = static_cast<unsigned>(detail::place(e) / 16);
    const auto column = static_cast<unsigned>(detail::place(e) % 16);
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = from.x[e];
  }
}

}  // namespace nvcuda::wmma
