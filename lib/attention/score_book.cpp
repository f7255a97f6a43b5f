#include "attention/score_book.hpp"

namespace kvbench {
namespace {

thread_local double charged_seconds = 0.0;

}  // namespace

const std::vector<std::vector<double>>& ScoreBook::sums(Range queries) const {
  const double asked = now();
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = entries_[{queries.begin, queries.end}];
    if (slot == nullptr) {
      slot = std::make_unique<Entry>();
    }
    entry = slot.get();
  }
  std::call_once(entry->once, [&] {
    const double start = now();
    entry->sums = backend_.attention_sums(head_, queries);
    entry->seconds = now() - start;
  });
  charged_seconds += entry->seconds - (now() - asked);
  return entry->sums;
}

double ScoreBook::take_charged_seconds() {
  const double taken = charged_seconds;
  charged_seconds = 0.0;
  return taken;
}

}  // namespace kvbench
