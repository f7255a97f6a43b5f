// Linked into the program of a build with KVBENCH_COVERAGE, in place of GCC's own functions: it counts
// lines and never writes the counts. Shell and Python tests kill it, bound its files and read what it
// says; counts that are cut would spoil those of the unit tests.
#include <unistd.h>

extern "C" {
void __gcov_init(void* /*counters*/) {}
void __gcov_exit() {}
void __gcov_merge_add(void* /*counters*/, unsigned /*count*/) {}
pid_t __gcov_fork() {
  return fork();
}
}
