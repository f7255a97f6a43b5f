// What a user of the installed library writes: one draw, the same on every machine.
#include <cstdio>

#include "core/rng.hpp"

int main() {
  kvbench::RngStream stream = kvbench::Rng(1, {"prompt", 0, 0}, "uniform").stream("fill");
  const double u = stream.next_uniform();
  std::printf("%.17g\n", u);
  return u >= 0.0 && u < 1.0 && u == stream.uniform(0) ? 0 : 1;
}
