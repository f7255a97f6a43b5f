#include "attention/score_book.hpp"

namespace kvbench {
namespace {

thread_local double charged_seconds = 0.0;

}  // namespace

const ScoreBook::Scores& ScoreBook::once(const std::tuple<std::string, Index, Index>& key,
                                         const std::function<Scores()>& compute) const {
  const double asked = now();
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = entries_[key];
    if (slot == nullptr) {
      slot = std::make_unique<Entry>();
    }
    entry = slot.get();
  }
  std::call_once(entry->once, [&] {
    const double start = now();
    entry->sums = compute();
    entry->seconds = now() - start;
  });
  charged_seconds += entry->seconds - (now() - asked);
  return entry->sums;
}

const std::vector<std::vector<double>>& ScoreBook::sums(Range queries) const {
  return once({"", queries.begin, queries.end},
              [&] { return backend_.attention_sums(head_, queries); });
}

const ScoreBook::Scores& ScoreBook::named(const std::string& name,
                                          const std::function<Scores()>& compute) const {
  return once({name, -1, -1}, compute);
}

double ScoreBook::take_charged_seconds() {
  const double taken = charged_seconds;
  charged_seconds = 0.0;
  return taken;
}

}  // namespace kvbench
