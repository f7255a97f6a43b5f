// Runs a method on one head alone (a head without a share is a layer of its own), with the contract
// checked. What every method owes for any budget and any odd input: test_methods.cpp.
#pragma once

#include <cctype>
#include <functional>
#include <map>

#include "algorithms/contract.hpp"
#include "algorithms/nested_methods.hpp"
#include "algorithms/registry.hpp"
#include "core/error.hpp"
#include "make_extra.hpp"
#include "make_trace.hpp"
#include "metrics/memory.hpp"
#include "replay/job.hpp"

namespace kvbench {

using Given = std::map<std::string, std::string>;

/// Every combination of the values in "key=value,value;key=value".
inline std::vector<Given> settings(const std::string& text) {
  std::vector<Given> out{{}};
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ';');) {
    const std::size_t equal = part.find('=');
    std::vector<Given> longer;
    for (const Given& given : out) {
      std::istringstream values(part.substr(equal + 1));
      for (std::string value; std::getline(values, value, ',');) {
        longer.push_back(given);
        longer.back()[part.substr(0, equal)] = value;
      }
    }
    out = std::move(longer);
  }
  return out;
}

/// `given`, and what `more` sets.
inline Given with(Given given, const Given& more) {
  for (const auto& [name, value] : more) {
    given[name] = value;
  }
  return given;
}

inline Index index_in(const Given& given, const std::string& name) {
  return std::stoll(given.at(name));
}

inline Params params_for(const Method& method, const Given& given = {}) {
  return {method.info.name, params_of(method, given), given};
}

inline JobFacts facts_of(const std::string& method, const Given& given = {}) {
  return find_method(method).info.facts(params_for(find_method(method), given));
}

/// Tokens of the heads that share a budget.
inline std::vector<Index> shared_tokens(const std::string& method,
                                        const std::vector<Survey>& surveys,
                                        const Given& given = {}) {
  std::vector<Index> out;
  const Method& m = find_method(method);
  for (const Share& share : m.share(surveys, params_for(m, given))) {
    out.push_back(share.tokens);
  }
  return out;
}

/// Layouts of rotary tables and the channels that they turn, of heads 10 wide.
inline const std::vector<std::pair<RopeLayout, Index>> kRopeLayouts{{RopeLayout::half, 10},
                                                                    {RopeLayout::interleaved, 10},
                                                                    {RopeLayout::half, 4},
                                                                    {RopeLayout::interleaved, 6}};

/// A head, its tokens, its scores and what a job asks: everything that a Task points to.
class JobOf {
 public:
  /// `equipped`: with rotary tables, an output projection, extra queries, scores
  /// (make_extra.hpp) and the mass that oracles see.
  JobOf(const Method& method, KvHead head, std::vector<Index> tokens, Range scoring,
        bool equipped = false)
      : method_(method),
        head_(std::move(head)),
        tokens_(std::move(tokens)),
        scoring_(scoring),
        book_(head_) {
    if (equipped) {
      rope = testing_replay::rope_tables(head_.n() + 512, head_.d() / 2 * 2);
      std::mt19937_64 generator(77);
      extra = usual_extra(head_);
      named_scores = usual_scores(head_);
      for (Index i = 0; i < head_.n(); ++i) {
        true_mass.push_back(1.0 / static_cast<double>(1 + i % 5));
      }
      o_proj = normal_matrix(13, static_cast<Index>(head_.q.size()) * head_.dv(), 1.0, generator);
    }
  }

  /// The registered method of that name.
  JobOf(const std::string& method, KvHead head, std::vector<Index> tokens, Range scoring,
        bool equipped = false)
      : JobOf(find_method(method), std::move(head), std::move(tokens), scoring, equipped) {}

  /// What a task gets where it is set.
  std::optional<RopeTables> rope;
  std::optional<Matrix> o_proj;
  std::vector<ExtraSet> extra;
  std::vector<NamedScores> named_scores;
  std::vector<double> true_mass;
  Index sink = 0;
  Range evaluated = {};

  const KvHead& head() const { return head_; }
  const std::vector<Index>& tokens() const { return tokens_; }
  Params params(const Given& given = {}) const { return params_for(method_, given); }
  Task task(std::optional<Index> budget = {}) const {
    Task t{head_, tokens_, budget, scoring_, true_mass, Rng(1, {"p", 0, 0}, method_.info.name)};
    t.scores = &book_;
    t.rope = rope ? &*rope : nullptr;
    t.o_proj = o_proj ? &*o_proj : nullptr;
    t.extra = extra;
    t.named_scores = named_scores;
    t.sink = sink;
    t.evaluated = evaluated;
    return t;
  }
  Compressed run(std::optional<Index> budget, const Given& given = {},
                 std::uint64_t seed = 1) const {
    Task t = task(budget);
    t.rng = Rng(seed, {"p", 0, 0}, method_.info.name);
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

/// Whether both hold the same, to the bit.
inline bool same(const Compressed& a, const Compressed& b) {
  const auto held = [](const HeldTokens& x, const HeldTokens& y) {
    return x.tokens == y.tokens && x.weights == y.weights && x.common == y.common;
  };
  const auto made = [](const MadeTokens& x, const MadeTokens& y) {
    return same_bits(x.k, y.k) && same_bits(x.v, y.v) && x.weights == y.weights;
  };
  return held(a.held, b.held) && made(a.made, b.made) &&
         a.denominator.has_value() == b.denominator.has_value() &&
         (!a.denominator || (held(a.denominator->held, b.denominator->held) &&
                             made(a.denominator->made, b.denominator->made))) &&
         a.aux_bytes == b.aux_bytes && a.payload_bytes == b.payload_bytes && a.diag == b.diag;
}

/// A figure of the method's own, as text; a failure where it gives none of that name.
template <class Held>
std::string diag_text(const Held& c, const std::string& key) {
  for (const auto& [name, value] : c.diag) {
    if (name == key) {
      return value;
    }
  }
  ADD_FAILURE() << "no figure " << key;
  return "";
}

/// The same as a number; NaN where there is none.
inline double diag_number(const Compressed& c, const std::string& key) {
  const std::string text = diag_text(c, key);
  return text.empty() ? std::numeric_limits<double>::quiet_NaN() : std::stod(text);
}

inline double weight_sum(const HeldTokens& held) {
  double sum = 0.0;
  for (std::size_t i = 0; i < held.tokens.size(); ++i) {
    sum += static_cast<double>(held.weight(i));
  }
  return sum;
}

/// The bytes that `act` says it needs; a failure where its budget is enough.
inline Index needed_bytes(const std::function<void()>& act) {
  try {
    act();
  } catch (const Infeasible& e) {
    return e.needed_bytes();
  }
  ADD_FAILURE() << "the budget is enough";
  return -1;
}

/// "NAME:key=value;key=value".
struct MethodSpec {
  std::string name;
  Given given;
};
inline MethodSpec parsed_spec(const std::string& text) {
  const std::size_t colon = std::min(text.find(':'), text.size() - 1);
  return {text.substr(0, text.find(':')), settings(text.substr(colon + 1)).front()};
}

/// The same as a test's name.
inline std::string spec_name(const ::testing::TestParamInfo<std::string>& p) {
  std::string name = p.param;
  std::ranges::replace_if(
      name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

/// Heads of 40 tokens: repeated, zero, vanishing and huge keys and values.
inline std::vector<KvHead> odd_heads() {
  HeadShape shape{.n = 40, .nq = 40, .dv = 4};
  std::vector<KvHead> heads;
  for (unsigned seed = 1; seed <= 9; ++seed) {
    shape.key_norm = seed == 5 ? 300.0 : seed == 6 ? 1e-44 : 3.0;
    shape.value_norm = seed == 6 ? 1e-20 : 1.0;
    heads.push_back(make_head(shape, seed));
  }
  repeat_first_row(heads[1].k);
  repeat_first_row(heads[1].v);
  std::fill_n(heads[2].v.data(), 40 * 4, 0.0F);
  std::fill_n(heads[3].k.data(), 40 * 8, 0.0F);
  heads[6].k = odd_keys(40, 8, 9);
  for (Index i = 0; i < 40 * 8; ++i) {
    heads[7].k.data()[i] = (i % 3 == 0 ? -3e38F : 3e38F) * (i % 7 == 0 ? 1.0F : 0.5F);
  }
  heads[8].dtype = DType::float16;
  for (Index i = 0; i < 40 * 4; ++i) {
    heads[8].v.data()[i] = i % 3 == 0 ? -65504.0F : 65504.0F;
  }
  return heads;
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

}  // namespace kvbench
