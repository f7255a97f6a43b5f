// A layer (or several) of heads for methods that share a budget: survey, share, compress, as the
// replay does it, with the contract checked on the way.
#pragma once

#include <deque>

#include "method_checks.hpp"

namespace kvbench {

class SharedJob {
 public:
  /// `heads`: by layer, then KV head, `kv_heads` to a layer; all compress `tokens`.
  SharedJob(const Method& method, const std::vector<KvHead>& heads, Index kv_heads,
            const std::vector<Index>& tokens, Range scoring, bool equipped = false)
      : method_(method), kv_heads_(kv_heads) {
    for (const KvHead& head : heads) {
      jobs_.emplace_back(method, head, tokens, scoring, equipped);
    }
  }
  SharedJob(const std::string& method, const std::vector<KvHead>& heads, Index kv_heads,
            const std::vector<Index>& tokens, Range scoring, bool equipped = false)
      : SharedJob(find_method(method), heads, kv_heads, tokens, scoring, equipped) {}

  const JobOf& job(std::size_t i) const { return jobs_[i]; }
  std::vector<std::uint8_t> retrieval_heads;

  std::vector<Survey> surveys(Index budget, const Given& given = {}) const {
    std::vector<Survey> out;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const Task t = task(i, budget);
      Survey s = method_.survey(t, jobs_[i].params(given));
      s.layer = static_cast<Index>(i) / kv_heads_;
      s.kv_head = t.kv_head;
      s.middle = t.count();
      s.pair_bytes = t.head.pair_bytes();
      s.budget_bytes = budget;
      out.push_back(std::move(s));
    }
    return out;
  }

  /// Why the heads were no fair instances of the method at the last run.
  mutable std::vector<std::string> degenerate;

  /// Kept tokens of each head; `budget` bytes per head.
  std::vector<std::vector<Index>> run(Index budget, const Given& given = {}) const {
    const std::vector<Survey> all = surveys(budget, given);
    const std::vector<Share> shares = method_.share(all, jobs_.front().params(given));
    EXPECT_EQ(shares.size(), all.size());
    Index allowed = 0;
    Index held = 0;
    std::vector<std::vector<Index>> out;
    degenerate.clear();
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      Task t = task(i, budget);
      t.share = &shares[i];
      const Compressed c = method_.compress(t, jobs_[i].params(given));
      check_compressed(c, t);
      allowed += all[i].tokens;
      held += static_cast<Index>(c.held.tokens.size());
      out.push_back(c.held.tokens);
      degenerate.push_back(c.degenerate);
    }
    EXPECT_LE(held, allowed);
    return out;
  }

  Task task(std::size_t i, Index budget) const {
    Task t = jobs_[i].task(budget);
    t.kv_head = static_cast<Index>(i) % kv_heads_;
    t.rng = Rng(1, {"p", static_cast<Index>(i) / kv_heads_, t.kv_head}, method_.info.name);
    t.retrieval_heads = retrieval_heads;
    return t;
  }

 private:
  const Method& method_;
  Index kv_heads_;
  std::deque<JobOf> jobs_;  // a job points into itself: it never moves
};

/// By head, whether all of `tokens` is kept; a failure where only a part is.
inline std::vector<bool> kept_whole(const std::vector<std::vector<Index>>& kept,
                                    const std::vector<Index>& tokens) {
  std::vector<bool> out;
  for (const std::vector<Index>& set : kept) {
    EXPECT_TRUE(set.empty() || set == tokens);
    out.push_back(!set.empty());
  }
  return out;
}

}  // namespace kvbench
