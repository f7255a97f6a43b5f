// A data race between the threads of a parallel region, which ThreadSanitizer has to report:
// without that its silence about kvbench would mean nothing.
#include <cstdio>

int main() {
  int sum = 0;
#pragma omp parallel for num_threads(4)
  for (int i = 0; i < 1000; ++i) {
    sum += i;
  }
  std::printf("%d\n", sum);
}
