#include "replay/shared.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

namespace kvbench {
namespace {

// Heads that share one budget: (trace, prompt, layer), or (trace, prompt, nullopt) over all layers.
using Group = std::tuple<std::size_t, std::size_t, std::optional<std::size_t>>;

Group group_of(const Unit& unit, Scope scope) {
  return {unit.trace, unit.prompt,
          scope == Scope::layer ? std::optional(unit.layer) : std::nullopt};
}

// KV heads of the unit's layer, or of all replayed layers of its prompt.
std::vector<Unit> sharing_units(const Plan& plan, const Unit& unit, bool all_layers) {
  std::vector<Unit> out;
  const auto& layers = plan.prompt_meta(unit).layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const bool replayed = std::ranges::binary_search(
        plan.units, std::array{unit.trace, unit.prompt, l}, {}, &Unit::layer_key);
    if (l == unit.layer || (all_layers && replayed)) {
      for (Index kv = 0; kv < layers[l].kv_heads; ++kv) {
        out.push_back({unit.trace, unit.prompt, l, kv, {}});
      }
    }
  }
  return out;
}

Scope scope_of(const Plan& plan, const Unit& unit, const Entry& entry) {
  return plan.variant_of(unit, entry).scope();
}

struct Surveys {
  std::set<std::pair<Group, std::size_t>> groups;  // by entry
  std::set<UnitKey> heads;
};

Surveys surveys_of(const Plan& plan, const std::vector<Index>& jobs) {
  Surveys out;
  if (std::ranges::all_of(plan.variants,
                          [](const Variant& v) { return v.scope() == Scope::head; })) {
    return out;
  }
  for (const Index job : jobs) {
    const std::size_t entry = plan.entry_number(job);
    const Unit& unit = plan.unit_of(job);
    const Scope scope = scope_of(plan, unit, plan.entries[entry]);
    if (scope != Scope::head && plan.lacks(unit, plan.entries[entry].variant) == nullptr &&
        out.groups.insert({group_of(unit, scope), entry}).second) {
      for (const Unit& u : sharing_units(plan, unit, scope == Scope::layers)) {
        out.heads.insert(u.key());
      }
    }
  }
  return out;
}

// Throws std::logic_error unless there is one share per survey, each within [0, the head's tokens],
// and the sum is within the sum of the heads' budgets.
void check_shares(std::span<const Survey> surveys, std::span<const Share> shares) {
  if (shares.size() != surveys.size()) {
    throw std::logic_error("one share per surveyed head");
  }
  Index shared = 0;
  Index available = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].tokens < 0 || shares[i].tokens > surveys[i].middle) {
      throw std::logic_error("a head's share within [0, its tokens]");
    }
    shared += shares[i].bytes.value_or(shares[i].tokens * surveys[i].pair_bytes);
    available += surveys[i].bytes();
  }
  if (shared > available) {
    throw std::logic_error("shares that together exceed the budget");
  }
}

}  // namespace

std::set<UnitKey> heads_to_survey(const Plan& plan, const std::vector<Index>& jobs) {
  return surveys_of(plan, jobs).heads;
}

SharedBudgets::SharedBudgets(const Plan& plan, const std::vector<Index>& jobs,
                             const std::atomic<bool>& stop, KeptHeads* kept) {
  const auto [wanted, to_read] = surveys_of(plan, jobs);
  std::map<std::pair<Group, std::size_t>, Surveyed> collected;
  for (auto next = to_read.begin(); next != to_read.end();) {
    const auto [trace, prompt, layer, kv_head] = *next;
    if (stop) {
      return;
    }
    const Unit unit{trace, prompt, layer, kv_head, {}};
    std::optional<KvHead> head = kept == nullptr ? std::nullopt : kept->take(unit);
    const bool waited = head.has_value();
    HeadInput input(plan, unit, std::move(head));
    for (std::size_t e = 0; e < plan.entries.size(); ++e) {
      const Scope scope = scope_of(plan, unit, plan.entries[e]);
      if (scope == Scope::head || wanted.count({group_of(unit, scope), e}) == 0 ||
          plan.lacks(unit, plan.entries[e].variant) != nullptr) {
        continue;
      }
      const Variant& variant = plan.variant_of(unit, plan.entries[e]);
      Surveyed& group = collected[{group_of(unit, scope), e}];
      group.units.push_back(unit);
      try {
        const Task task = input.task(plan.entries[e]);
        Survey survey = variant.method->survey(task, variant.params);
        survey.layer = input.id().layer;
        survey.kv_head = input.id().kv_head;
        survey.middle = static_cast<Index>(input.middle().size());
        survey.pair_bytes = input.head().pair_bytes();
        survey.shape = shape_of(input.head());
        if (!survey.budget_bytes) {
          survey.budget_bytes = task.budget_bytes;
        }
        group.surveys.push_back(std::move(survey));
      } catch (...) {
        group.error = group.error ? group.error : std::current_exception();
      }
    }
    if (waited) {
      kept->keep(unit, std::move(input).head());
    }
    // Divide the budget of a group and free its surveys once all its heads are read.
    ++next;
    const bool more = next != to_read.end();
    const bool more_of_prompt = more && std::get<0>(*next) == trace && std::get<1>(*next) == prompt;
    const bool more_of_layer = more_of_prompt && std::get<2>(*next) == layer;
    std::erase_if(collected, [&](const auto& item) {
      const auto& [group, entry] = item.first;
      const bool whole = std::get<2>(group) ? !more_of_layer : !more_of_prompt;
      if (whole) {
        share_out(plan, entry, item.second);
      }
      return whole;
    });
  }
}

void SharedBudgets::share_out(const Plan& plan, std::size_t entry, const Surveyed& group) {
  std::exception_ptr error = group.error;
  std::vector<Share> shares(group.units.size());
  try {
    if (!error) {
      const Variant& variant = plan.variant_of(group.units.front(), plan.entries[entry]);
      shares = variant.method->share(group.surveys, variant.params);
      check_shares(group.surveys, shares);
    }
  } catch (...) {
    error = std::current_exception();
    shares.assign(group.units.size(), {});
  }
  for (std::size_t i = 0; i < group.units.size(); ++i) {
    shares_[{group.units[i].key(), entry}] = {std::move(shares[i]), error};
  }
}

const ShareOrError* SharedBudgets::find(const Unit& unit, std::size_t entry) const {
  const auto it = shares_.find({unit.key(), entry});
  return it == shares_.end() ? nullptr : &it->second;
}

}  // namespace kvbench
