#include "attention/scores.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "attention/query_block.hpp"
#include "core/shared_work.hpp"

namespace kvbench {
namespace {

thread_local double charged_seconds = 0.0;

// A block of queries and its column sums.
template <class T>
struct BlockSums {
  QueryBlock<T> block;
  std::vector<double> sums;  // [tokens]
};

template <class T>
void add_sums(const KvHead& head, Range queries, std::vector<std::vector<double>>& out) {
  const Index blocks = (queries.size() + kQueryBlock - 1) / kQueryBlock;
  ScratchPool<BlockSums<T>> scratch;
  const auto attend = [&](Index i) {
    const Index begin = queries.begin + i % blocks * kQueryBlock;
    std::vector<Index> positions(std::min(kQueryBlock, queries.end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    auto one = scratch.take();
    one->block.reserve(static_cast<Index>(positions.size()), queries.end);
    one->block.attend(head, i / blocks, positions, nullptr);
    one->sums.assign(static_cast<std::size_t>(positions.back() + 1), 0.0);
    one->block.add_columns(one->sums.data(), nullptr, 0.0);
    return one;
  };
  share_in_order(head.group() * blocks, attend, [&](Index i, auto one) {
    std::vector<double>& sums = out[i / blocks];
    for (std::size_t t = 0; t < one->sums.size(); ++t) {
      sums[t] += one->sums[t];
    }
    scratch.give(std::move(one));
  });
}

}  // namespace

std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries) {
  const Range held{std::max(queries.begin, head.q_start()), queries.end};
  std::vector<std::vector<double>> out(head.group(), std::vector<double>(head.n(), 0.0));
  with_element(head.precision, [&](auto element) { add_sums<decltype(element)>(head, held, out); });
  return out;
}

std::vector<double> reduce_group(const std::vector<std::vector<double>>& scores, Reduce reduce) {
  std::vector<double> out = scores.front();
  for (std::size_t g = 1; g < scores.size(); ++g) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = reduce == Reduce::max ? std::max(out[i], scores[g][i]) : out[i] + scores[g][i];
    }
  }
  if (reduce == Reduce::mean) {
    for (double& x : out) {
      x /= static_cast<double>(scores.size());
    }
  }
  return out;
}

std::vector<Index> top_indices(std::span<const double> scores, Index count) {
  std::vector<Index> order(scores.size());
  std::iota(order.begin(), order.end(), Index{0});
  const auto better = [&](Index a, Index b) {
    const double x = scores[a];
    const double y = scores[b];
    return x != y ? x > y : a < b;
  };
  const auto cut = order.begin() + count;
  std::nth_element(order.begin(), cut == order.end() ? order.begin() : cut, order.end(), better);
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

const ScoreBook::Scores& ScoreBook::once(const Key& key,
                                         const std::function<Scores()>& compute) const {
  const double asked = now();
  Slot* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    auto& slot = entries_[key];
    if (slot == nullptr) {
      slot = std::make_unique<Slot>();
    }
    entry = slot.get();
  }
  IdleScope waits;  // for a thread that computes them
  std::call_once(entry->once, [&] {
    waits.end();
    const double start = now();
    entry->scores = compute();
    entry->seconds = now() - start;
  });
  charged_seconds += entry->seconds - (now() - asked);
  return entry->scores;
}

const ScoreBook::Scores& ScoreBook::sums(Range queries) const {
  return once({"", queries.begin, queries.end},
              [&] { return backend_.attention_sums(head_, queries); });
}

const ScoreBook::Scores& ScoreBook::cached(const std::string& key,
                                           const std::function<Scores()>& compute) const {
  return once({key, -1, -1}, compute);
}

double ScoreBook::reset_charged_seconds() {
  return std::exchange(charged_seconds, 0.0);
}

}  // namespace kvbench
