#include "core/shared_work.hpp"

namespace kvbench {
namespace {

std::atomic<int> idle = 0;

}  // namespace

void IdleThreads::add(int count) {
  idle += count;
}

bool IdleThreads::take() {
  int now = idle;
  while (now > 0) {
    if (idle.compare_exchange_weak(now, now - 1)) {
      return true;
    }
  }
  return false;
}

}  // namespace kvbench
