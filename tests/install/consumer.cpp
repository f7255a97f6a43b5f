// All public headers of the installed library, and its flags: a program's copies of inline
// functions must compute what the library's do.
#include <all_headers.hpp>
#include <cstdio>

#include "core/types.hpp"

#if !defined(_OPENMP)
#error "got no OpenMP, expected the library's flags"
#endif
#if defined(__x86_64__) && !defined(__FMA__)
#error "got no FMA, expected the library's instruction set"
#endif

int main() {
  static_assert(consumer::own_header);
  volatile double third = 1.0 / 3.0;
  volatile double square = third * third;
  const double a = third;
  if (a * a - square != 0.0) {
    std::puts("got products fused with sums, expected none: -ffp-contract=off");
    return 1;
  }
  kvbench::RngStream stream = kvbench::Rng(1, {"prompt", 0, 0}, "uniform").stream("fill");
  const double u = stream.next_uniform();
  return u >= 0.0 && u < 1.0 && u == stream.uniform(0) ? 0 : 1;
}
