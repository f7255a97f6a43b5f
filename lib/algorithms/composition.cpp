#include "algorithms/composition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "algorithms/nested_methods.hpp"
#include "algorithms/shared/scoring.hpp"
#include "algorithms/shared/size.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

void check_part(const Method& m, bool runs) {
  if (!runs || m.info.sizes.empty()) {
    throw InputError(fmt::format(
        "{}: cannot be part of a composition, expected a method that runs under prefill and takes "
        "a budget",
        m.info.name));
  }
}

void check_scope(const Method& b, Scope scope) {
  if (scope != Scope::head) {
    throw InputError(fmt::format(
        "{}: shares its budget with other heads, expected it first in a composition", b.info.name));
  }
}

// Bytes of the whole, as if no head shared.
Index own_bytes(const Task& task, const Params& params) {
  return task.budget_bytes && params.is_auto("tokens") && params.is_auto("T")
             ? *task.budget_bytes
             : pairs_to_keep(task, params) * task.head.pair_bytes();
}

Index first_bytes(Index total, const Params& params) {
  return floor_share(params.real("share"), total);
}

// Union of A's tokens at weight 1 and B's, ascending.
HeldTokens join(const std::vector<Index>& kept, const HeldTokens& rest) {
  HeldTokens out;
  std::size_t a = 0;
  std::size_t b = 0;
  while (a < kept.size() || b < rest.tokens.size()) {
    const bool from_a = b == rest.tokens.size() || (a < kept.size() && kept[a] < rest.tokens[b]);
    out.tokens.push_back(from_a ? kept[a] : rest.tokens[b]);
    out.weights.push_back(from_a ? 1.0F : rest.weight(b));
    (from_a ? a : b) += 1;
  }
  return out;
}

// A's part of the task.
Task first_task(const Method& a, const Task& task, const Params& params) {
  Task first = task;
  first.budget_bytes = first_bytes(own_bytes(task, params), params);
  first.rng = task.rng.part(a.info.name);
  return first;
}

// Bytes of the whole head that A leaves.
Index bytes_left(const Compressed& kept, const Task& task, const Params& params) {
  const Index whole = task.share != nullptr ? task.share->bytes.value() : own_bytes(task, params);
  return whole - payload_bytes(kept, task.head) - kept.aux_bytes;
}

// What A keeps of its part of the task.
Compressed keep_first(const Method& a, const Task& task, const Params& params) {
  Compressed kept = a.compress(first_task(a, task, params), part_params(a, params));
  if (kept.made.k.rows() > 0 || kept.denominator || !kept.held.weights.empty() ||
      kept.held.common != 1.0F) {
    throw std::logic_error(fmt::format(
        "{}: holds is tokens, got entries that are not tokens of weight 1", a.info.name));
  }
  return kept;
}

std::vector<Index> tokens_without(std::span<const Index> tokens, std::span<const Index> kept) {
  std::vector<Index> left;
  std::ranges::set_difference(tokens, kept, std::back_inserter(left));
  return left;
}

// B's part of the task: the tokens `left` by A, within `bytes`.
Task second_task(const Method& b, const Task& task, std::span<const Index> left, Index bytes) {
  Task out = task;
  out.tokens = left;
  out.whole = false;
  out.budget_bytes = bytes;
  out.rng = task.rng.part(b.info.name);
  out.share = nullptr;
  return out;
}

Compressed compose(const Method& a, const Method& b, const Task& task, const Params& params) {
  const Compressed kept = keep_first(a, task, params);
  const std::vector<Index> left = tokens_without(task.tokens, kept.held.tokens);
  Compressed rest = b.compress(second_task(b, task, left, bytes_left(kept, task, params)),
                               part_params(b, params));

  Compressed out;
  out.payload_bytes = payload_bytes(kept, task.head) + payload_bytes(rest, task.head);
  out.aux_bytes = kept.aux_bytes + rest.aux_bytes;
  out.transient_bytes = std::max(kept.transient_bytes, rest.transient_bytes);
  out.quantized = rest.quantized;
  out.degenerate = kept.degenerate.empty() ? rest.degenerate : kept.degenerate;
  out.held = join(kept.held.tokens, rest.held);
  out.made = std::move(rest.made);
  if (rest.denominator) {
    out.denominator = std::move(rest.denominator);
    out.denominator->held = join(kept.held.tokens, out.denominator->held);
  }
  add_part_diag(a, kept.diag, out.diag);
  add_part_diag(b, rest.diag, out.diag);
  return out;
}

class ComposedReads : public ReadIndex {
 public:
  ComposedReads(const Method& a, const Method& r, const Task& task, const Params& params)
      : a_(a), r_(r), kept_(keep_first(a, task, params)) {
    left_ = tokens_without(task.tokens, kept_.held.tokens);
    if (!left_.empty()) {
      rest_ = r.open_reads(second_task(r, task, left_, bytes_left(kept_, task, params)),
                           part_params(r, params));
    }
  }

  Reads search() override {
    Reads out = rest_ == nullptr ? Reads() : rest_->search();
    Figures diag;
    add_part_diag(a_, kept_.diag, diag);
    add_part_diag(r_, out.diag, diag);
    out.diag = std::move(diag);
    for (Index& asked : out.asked) {
      asked += static_cast<Index>(kept_.held.tokens.size());
    }
    out.degenerate = kept_.degenerate.empty() ? out.degenerate : kept_.degenerate;
    out.fixed = std::move(kept_);
    return out;
  }

 private:
  const Method& a_;
  const Method& r_;
  Compressed kept_;
  std::vector<Index> left_;
  std::unique_ptr<ReadIndex> rest_;
};

// A's shares, with B's part added to their bytes.
std::vector<Share> share_first(const Method& a, std::span<const Survey> surveys,
                               const Params& params) {
  std::vector<Survey> first(surveys.begin(), surveys.end());
  for (Survey& s : first) {
    s.budget_bytes = first_bytes(s.bytes(), params);
  }
  std::vector<Share> out = a.share(first, part_params(a, params));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].bytes = surveys[i].bytes() - first[i].bytes() + out[i].tokens * surveys[i].pair_bytes;
  }
  return out;
}

void check_parts(const Method& a, const Method& b) {
  check_part(a, a.compress != nullptr);
  check_part(b,
             b.compress != nullptr || (b.open_reads != nullptr && b.info.not_quantizable.empty()));
  check_scope(b, b.info.usual_facts().scope);
  if (&a == &b) {
    throw InputError(fmt::format("{0}+{0}: expected two different methods", a.info.name));
  }
  if (a.info.holds != Holds::tokens) {
    throw InputError(fmt::format("{}: keeps no plain tokens, expected a token-keeping method first",
                                 a.info.name));
  }
}

}  // namespace

Method composed(const Method& a, const Method& b) {
  check_parts(a, b);
  Method out;
  out.joint = '+';
  out.components = {{&a, part_prefix(a), part_params}, {&b, part_prefix(b), part_params}};
  MethodInfo& info = out.info;
  info.name = fmt::format("{}+{}", a.info.name, b.info.name);
  info.summary =
      b.compress != nullptr
          ? fmt::format("{} keeps tokens in a share of the bytes, {} represents the rest",
                        a.info.name, b.info.name)
          : fmt::format("every query reads tokens of {} in a share of the bytes, and its own by {}",
                        a.info.name, b.info.name);
  info.source =
      fmt::format("{}: {}; {}: {}", a.info.name, a.info.source, b.info.name, b.info.source);
  info.params = size_params({real_param("share", "0.5", 0, 1, "fraction",
                                        "part of the middle's bytes that the first method gets")});
  info.copies = 0;  // beside those of A and B
  info.facts = [&a, &b](const Params& params) {
    check_scope(b, b.info.facts(part_params(b, params)).scope);
    return JobFacts{.scope = a.info.facts(part_params(a, params)).scope};
  };
  if (b.compress != nullptr) {
    out.compress = [&a, &b](const Task& task, const Params& params) {
      return compose(a, b, task, params);
    };
  }
  if (b.open_reads != nullptr) {
    out.open_reads = [&a, &b](const Task& task, const Params& params) {
      return std::make_unique<ComposedReads>(a, b, task, params);
    };
  }
  out.survey = [&a](const Task& task, const Params& params) {
    Survey survey = a.survey(first_task(a, task, params), part_params(a, params));
    survey.budget_bytes = own_bytes(task, params);
    return survey;
  };
  out.share = [&a](std::span<const Survey> surveys, const Params& params) {
    return share_first(a, surveys, params);
  };
  return out;
}

}  // namespace kvbench
