#include "attention/scores.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "attention/query_block.hpp"

namespace kvbench {
namespace {

thread_local double charged_seconds = 0.0;

template <class T>
void add_sums(const KvHead& head, Index g, Range queries, std::vector<double>& sums) {
  QueryBlock<T> block;
  block.reserve(std::min(kQueryBlock, queries.size()), queries.end);
  std::vector<Index> positions;
  for (Index q0 = queries.begin; q0 < queries.end; q0 += kQueryBlock) {
    positions.resize(std::min(kQueryBlock, queries.end - q0));
    std::iota(positions.begin(), positions.end(), q0);
    block.attend(head, g, positions, nullptr);
    block.add_columns(sums.data(), nullptr, 0.0);
  }
}

}  // namespace

template <class T>
std::vector<std::vector<double>> attention_sums(const KvHead& head, Range queries) {
  const Range held{std::max(queries.begin, head.q_start()), queries.end};
  std::vector<std::vector<double>> out(head.group(), std::vector<double>(head.n(), 0.0));
  for (Index g = 0; g < head.group(); ++g) {
    add_sums<T>(head, g, held, out[g]);
  }
  return out;
}

template std::vector<std::vector<double>> attention_sums<float>(const KvHead&, Range);
template std::vector<std::vector<double>> attention_sums<double>(const KvHead&, Range);

Index attention_sums_bytes(Index element, Index queries, Index n) {
  return query_block_bytes(element, std::min(kQueryBlock, queries), n);
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
