// What every method owes for any budget and any odd input, for tests of methods that score with
// queries and share budgets over heads: runs one head alone (a head without a share is a layer of
// its own) and checks the contract.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "algorithms/nested_methods.hpp"
#include "core/error.hpp"
#include "make_extra.hpp"
#include "make_head.hpp"
#include "make_trace.hpp"
#include "metrics/memory.hpp"
#include "replay/job.hpp"

namespace kvbench {

using Given = std::map<std::string, std::string>;

/// A head, its tokens, its scores and what a job asks: everything that a Task points to.
class JobOf {
 public:
  /// `equipped`: with rotary tables, an output projection, extra queries and scores
  /// (make_extra.hpp).
  JobOf(const Method& method, KvHead head, std::vector<Index> tokens, Range scoring,
        bool equipped = false)
      : method_(method),
        head_(std::move(head)),
        tokens_(std::move(tokens)),
        scoring_(scoring),
        book_(head_) {
    if (equipped) {
      rope = testing_replay::rope_tables(head_.n(), head_.d() / 2 * 2);
      std::mt19937_64 generator(77);
      extra = usual_extra(head_);
      named_scores = usual_scores(head_);
      o_proj = normal_matrix(13, static_cast<Index>(head_.q.size()) * head_.dv(), 1.0, generator);
    }
  }

  /// What a task gets where it is set.
  std::optional<RopeTables> rope;
  std::optional<Matrix> o_proj;
  std::vector<ExtraSet> extra;
  std::vector<NamedScores> named_scores;

  const KvHead& head() const { return head_; }
  const std::vector<Index>& tokens() const { return tokens_; }
  Params params(const Given& given = {}) const {
    return {method_.info.name, params_of(method_, given), given};
  }
  Task task(std::optional<Index> budget = {}) const {
    Task t{head_, tokens_, budget, scoring_, {}, Rng(1, {"p", 0, 0}, method_.info.name)};
    t.scores = &book_;
    t.rope = rope ? &*rope : nullptr;
    t.o_proj = o_proj ? &*o_proj : nullptr;
    t.extra = extra;
    t.named_scores = named_scores;
    return t;
  }
  Compressed run(std::optional<Index> budget, const Given& given = {}) const {
    const Task t = task(budget);
    Compressed c = method_.compress(t, params(given));
    check_compressed(c, t);
    return c;
  }
  std::vector<Index> kept(Index count, const Given& given = {}) const {
    return run(count * head_.pair_bytes(), given).held.tokens;
  }

 private:
  const Method& method_;
  KvHead head_;
  std::vector<Index> tokens_;
  Range scoring_;
  ScoreBook book_;
};

/// Bytes held for the middle, counted without payload_bytes().
inline Index middle_bytes_of(const Compressed& c, const KvHead& head) {
  const auto held = static_cast<Index>(c.held.tokens.size());
  Index elements = (held + c.made.k.rows()) * (head.k.cols() + head.v.cols());
  if (c.denominator) {
    elements += c.denominator->made.k.rows() * head.k.cols();
    if (!c.denominator->same_keys) {
      elements += static_cast<Index>(c.denominator->held.tokens.size()) * head.k.cols();
    }
  }
  return c.payload_bytes.value_or(elements * (head.dtype == DType::float32 ? 4 : 2)) + c.aux_bytes;
}

/// Tokens of which every third is missing, as another method leaves them.
inline std::vector<Index> gappy(Index begin, Index end) {
  std::vector<Index> out;
  for (Index i = begin; i < end; ++i) {
    if (i % 3 != 1) {
      out.push_back(i);
    }
  }
  return out;
}

/// Never more bytes than the budget, and all of it used where whole tokens fit unless
/// `all_or_nothing`; many budgets, sizes, types, and tokens with gaps.
inline void check_budgets(const Method& method, bool all_or_nothing = false,
                          bool equipped = false) {
  for (const DType dtype : {DType::float16, DType::float32}) {
    HeadShape shape;
    shape.n = 150;
    shape.nq = 60;
    shape.dv = 4;
    shape.dtype = dtype;
    for (const Index m : {1, 2, 3, 20, 100}) {
      for (const std::vector<Index>& tokens : {positions(10, 10 + m), gappy(10, 10 + m)}) {
        const JobOf job(method, make_head(shape, 21), tokens, {90, 140}, equipped);
        const auto count = static_cast<Index>(tokens.size());
        const Index pair = job.head().pair_bytes();
        for (Index budget = 0; budget <= (count + 2) * pair; budget += 1 + pair / 3) {
          const Compressed c = job.run(budget);
          ASSERT_LE(middle_bytes_of(c, job.head()), budget);
          const auto held = static_cast<Index>(c.held.tokens.size());
          if (all_or_nothing) {
            ASSERT_EQ(held, budget >= count * pair ? count : 0);
          } else {
            ASSERT_EQ(held, std::min(count, budget / pair));
          }
        }
      }
    }
  }
}

/// Identical keys, zero keys, zero values, huge keys, no scoring query, one token, no token: a
/// result that keeps the contract. Native sizes work, and no size at all is refused.
inline void check_odd_inputs(const Method& method, bool equipped = false) {
  HeadShape shape;
  shape.n = 40;
  shape.nq = 40;
  std::vector<KvHead> heads;
  for (unsigned seed = 1; seed <= 5; ++seed) {
    shape.key_norm = seed == 5 ? 300.0 : 3.0;
    heads.push_back(make_head(shape, seed));
  }
  for (Index i = 1; i < 40; ++i) {
    std::copy_n(heads[1].k.row(0), 8, heads[1].k.row(i));
    std::copy_n(heads[1].v.row(0), 8, heads[1].v.row(i));
  }
  std::fill_n(heads[2].v.data(), 40 * 8, 0.0F);
  std::fill_n(heads[3].k.data(), 40 * 8, 0.0F);
  for (const KvHead& head : heads) {
    for (const Index m : {0, 1, 30}) {
      for (const Range scoring : {Range{0, 40}, Range{35, 36}, Range{40, 40}}) {
        const JobOf job(method, head, positions(5, 5 + m), scoring, equipped);
        for (const Index budget : {Index{0}, Index{1}, 10 * head.pair_bytes(), Index{1} << 40}) {
          ASSERT_NO_THROW(job.run(budget));
        }
        ASSERT_NO_THROW(job.run({}, {{"T", "1"}}));
        ASSERT_EQ(job.run({}, {{"tokens", "1000"}}).held.tokens, job.tokens());
        ASSERT_THROW(job.run({}), InputError);
      }
    }
  }
}

/// Every parameter is documented, the size parameters are there, and something is drawn or not.
inline void check_info(const Method& method, const std::string& name, bool random = false) {
  EXPECT_EQ(method.info.name, name);
  EXPECT_FALSE(method.info.summary.empty());
  EXPECT_FALSE(method.info.source.empty());
  EXPECT_EQ(method.info.holds, Holds::tokens);
  EXPECT_EQ(method.info.sizes, (std::vector<std::string>{"tokens", "T"}));
  for (const ParamSpec& p : method.info.params) {
    EXPECT_FALSE(p.doc.empty()) << p.name;
  }
  EXPECT_EQ(method.info.facts(Params(name, method.info.params, {})).random, random);
}

}  // namespace kvbench
