#include "algorithms/composition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "algorithms/nested_methods.hpp"
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
  return static_cast<Index>(params.real("share") * static_cast<double>(total));
}

Index row_bytes(const Compressed& c, const KvHead& head) {
  Index keys_only = 0;
  if (c.denominator) {
    keys_only = c.denominator->made.k.rows();
    keys_only +=
        c.denominator->same_keys ? 0 : static_cast<Index>(c.denominator->held.tokens.size());
  }
  return c.payload_bytes.value_or((static_cast<Index>(c.held.tokens.size()) + c.made.k.rows()) *
                                      head.pair_bytes() +
                                  keys_only * head.d() * bytes_per_element(head.dtype));
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

}  // namespace

std::vector<ParamSpec> composition_params(const Method& a, const Method& b,
                                          const std::map<std::string, std::string>& given) {
  check_part(a, a.compress != nullptr);
  check_part(b, b.compress != nullptr || (b.open_reads != nullptr && b.info.acts_as == nullptr));
  check_scope(b, b.info.scope);
  if (&a == &b) {
    throw InputError(fmt::format("{0}+{0}: expected two different methods", a.info.name));
  }
  if (!a.info.keeps_tokens) {
    throw InputError(fmt::format("{}: keeps no plain tokens, expected a token-keeping method first",
                                 a.info.name));
  }
  std::vector<ParamSpec> out = size_params({real_param(
      "share", "0.5", 0, 1, "fraction", "part of the middle's bytes that the first method gets")});
  for (const Method* m : {&a, &b}) {
    add_part_params(*m, given, out);
  }
  return out;
}

void check_composition(const Method& b, const Params& params) {
  check_scope(b,
              b.info.scope_of != nullptr ? b.info.scope_of(part_params(b, params)) : b.info.scope);
}

Task first_task(const Method& a, const Task& task, const Params& params) {
  Task first = task;
  first.budget_bytes = first_bytes(own_bytes(task, params), params);
  first.rng = task.rng.part(a.info.name);
  return first;
}

Index composition_bytes(const Task& task, const Params& params) {
  const Index own = own_bytes(task, params);
  return task.share == nullptr
             ? own
             : own - first_bytes(own, params) + task.share->tokens * task.head.pair_bytes();
}

Compressed keep_first(const Method& a, const Task& task, const Params& params) {
  Compressed kept = a.compress(first_task(a, task, params), part_params(a, params));
  if (kept.made.k.rows() > 0 || kept.denominator || !kept.held.weights.empty() ||
      kept.held.common != 1.0F) {
    throw std::logic_error(fmt::format(
        "{}: keeps_tokens is set, got entries that are not tokens of weight 1", a.info.name));
  }
  return kept;
}

std::vector<Index> tokens_without(std::span<const Index> tokens, std::span<const Index> kept) {
  std::vector<Index> left;
  std::ranges::set_difference(tokens, kept, std::back_inserter(left));
  return left;
}

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
  const Index total = composition_bytes(task, params);
  const Compressed kept = keep_first(a, task, params);
  const std::vector<Index> left = tokens_without(task.tokens, kept.held.tokens);
  const Index used = row_bytes(kept, task.head) + kept.aux_bytes;
  Compressed rest = b.compress(second_task(b, task, left, total - used), part_params(b, params));

  Compressed out;
  out.payload_bytes = row_bytes(kept, task.head) + row_bytes(rest, task.head);
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

}  // namespace kvbench
