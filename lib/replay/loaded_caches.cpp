#include "replay/loaded_caches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/sha256.hpp"
#include "metrics/memory.hpp"
#include "replay/head_cache.hpp"
#include "replay/windows.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

Params params_of(const CacheGroup& group) {
  std::vector<ParamSpec> specs;
  for (const auto& [key, value] : split_params(group.params)) {
    ParamSpec& spec = specs.emplace_back();
    spec.name = key;
    spec.kind = ParamKind::choice;
    spec.fallback = value;
    spec.choices = {value};
  }
  return Params(group.algorithm, specs, {});
}

void check_same_run(const CachesMeta& m, const CachesMeta& first, const std::string& path,
                    const std::string& first_path) {
  const auto differ = [&](const char* what, const auto& got, const auto& expected) {
    if (got != expected) {
      throw InputError(
          fmt::format("{}: {} {}, expected {} as in {}", path, what, got, expected, first_path));
    }
  };
  differ("sink", m.sink, first.sink);
  differ("recent", m.recent, first.recent);
  differ("queries", m.queries, first.queries);
  differ("trace_sha256", fmt::format("{}", fmt::join(m.trace_sha256, " ")),
         fmt::format("{}", fmt::join(first.trace_sha256, " ")));
}

void check_budget(Index held, Index allowed, const CacheGroup& group, const std::string& where) {
  if (held > allowed) {
    throw InputError(fmt::format(
        "{}: {} bytes of keys, values and aux_bytes{}, expected at most {} by the budget {}", where,
        held,
        group.scope == "head"    ? ""
        : group.scope == "layer" ? " with the other KV heads of the layer"
                                 : " with the other heads and layers",
        allowed, *group.budget));
  }
}

}  // namespace

LoadedCaches::LoadedCaches(const std::vector<std::string>& paths) : paths_(paths) {
  std::map<std::tuple<std::string, std::string, std::optional<double>, std::uint64_t>, std::size_t>
      known;
  for (const std::string& path : paths) {
    files_.emplace_back(path);
    const CacheReader& file = files_.back();
    const CachesMeta& m = file.meta();
    if (m.protocol != name(Protocol::prefill)) {
      throw InputError(fmt::format("{}: protocol is {}, expected prefill", path, m.protocol));
    }
    if (m.queries < 1 || m.recent < m.queries) {
      throw InputError(fmt::format("{}: recent {} and queries {}, expected 1 <= queries <= recent",
                                   path, m.recent, m.queries));
    }
    check_same_run(m, meta(), path, paths.front());
    for (std::size_t g = 0; g < file.groups().size(); ++g) {
      const CacheGroup& group = file.groups()[g];
      const auto [at, fresh] = known.emplace(
          std::tuple{group.algorithm, group.params, group.budget, group.seed}, groups_.size());
      if (fresh) {
        Method method;
        method.info.name = group.algorithm;
        groups_.push_back({group, {}, std::move(method)});
      }
      Group& own = groups_[at->second];
      if (own.info.scores != group.scores || own.info.scope != group.scope) {
        throw InputError(fmt::format(
            "{}: /{}: scores {} and scope {}, expected {} and {} as in another file", path,
            group.name, group.scores, group.scope, own.info.scores, own.info.scope));
      }
      own.parts.emplace_back(files_.size() - 1, g);
    }
  }
}

void LoadedCaches::check_traces(const std::vector<std::string>& paths) const {
  const std::vector<std::string>& from = meta().trace_sha256;
  for (const std::string& path : paths) {
    const std::string hash = sha256_file(path);
    if (std::find(from.begin(), from.end(), hash) == from.end()) {
      throw InputError(fmt::format(
          "{}: SHA-256 {} is not in {} ({}), expected the trace that the caches were made "
          "from",
          path, hash, paths_.front(), fmt::join(from, " ")));
    }
  }
}

void LoadedCaches::list(std::vector<Variant>& variants, Entries& entries) const {
  std::map<std::pair<std::string, std::string>, std::size_t> known;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroup& info = groups_[g].info;
    const auto [at, fresh] = known.emplace(std::pair{info.algorithm, info.params}, variants.size());
    if (fresh) {
      Variant variant;
      variant.method = &groups_[g].method;
      variant.params = params_of(info);
      variant.declared_scores = info.scores;
      variants.push_back(std::move(variant));
    } else if (variants[at->second].declared_scores != info.scores) {
      throw InputError(
          fmt::format("{}: /{}: scores is {}, expected {} as in the other groups of "
                      "{} with these params",
                      paths_.front(), info.name, info.scores, variants[at->second].declared_scores,
                      info.algorithm));
    }
    entries.push_back({at->second, info.budget, info.seed, g});
  }
}

LoadedCaches::Found LoadedCaches::find(const Group& group, const CachePlace& place) const {
  Found found{nullptr, 0, place};
  for (const auto& [file, number] : group.parts) {
    if (!files_[file].has(number, place)) {
      continue;
    }
    if (found.file != nullptr) {
      throw InputError(fmt::format("{}: also in {}, expected each head of {} in one of the files",
                                   files_[file].where(number, place), found.file->path(),
                                   group.info.algorithm));
    }
    found.file = &files_[file];
    found.group = number;
  }
  return found;
}

bool LoadedCaches::holds(const CachePlace& place) const {
  return std::ranges::any_of(
      groups_, [&](const Group& group) { return find(group, place).file != nullptr; });
}

LoadedCaches::Loaded LoadedCaches::read(const PlanSpec& plan, const Unit& unit, const Entry& entry,
                                        const KvHead& head, std::span<const Index> middle) const {
  const Group& group = groups_[entry.cache_group];
  const Found found = find(group, cache_place(plan, unit));
  if (found.file == nullptr) {
    throw InputError(
        fmt::format("the caches of {} hold nothing for this head", group.info.algorithm));
  }
  const auto cache = found.read({static_cast<Index>(middle.size()), head.d(), head.dv()});
  Loaded out;
  out.compress_ms = cache->compress_ms.value_or(std::numeric_limits<double>::quiet_NaN());
  out.scoring_queries = cache->scoring_queries;
  out.infeasible = cache->infeasible;
  out.failed = cache->failed;
  if (!out.absent()) {
    out.compressed = compressed_of(*cache, head, middle, found.where());
  }
  return out;
}

// Checks the budget that `unit` shares: with all heads of its layer, or of all layers of the prompt
// in the group, evaluated or not.
void LoadedCaches::check_shared(const PlanSpec& plan, const Group& group, const Unit& unit) const {
  const bool all_layers = group.info.scope == "layers";
  const DType dtype = plan.trace_meta(unit).dtype;
  Index held = 0;
  Index allowed = 0;
  std::string where;
  const auto& layers = plan.prompt_meta(unit).layers;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (!all_layers && l != unit.layer) {
      continue;
    }
    const LayerMeta& layer = layers[l];
    const Index middle = windows_of(plan.options, layer).middle.size();
    bool found_any = false;
    for (Index kv = 0; kv < layer.kv_heads; ++kv) {
      const Found found = find(group, {plan.prompt_meta(unit).id, layer.layer, kv});
      if (found.file != nullptr) {
        const auto cache = found.read({middle, layer.d, layer.dv});
        found_any = true;
        where = found.where();
        held += cache->absent() ? 0 : bytes_of(*cache, layer.d, layer.dv, dtype).sum();
      }
    }
    const Index full = middle * plan.pair_bytes({unit.trace, unit.prompt, l, 0, {}});
    allowed += found_any ? layer.kv_heads * budget_bytes(*group.info.budget, full) : 0;
  }
  check_budget(held, allowed, group.info, where);
}

void LoadedCaches::check(const PlanSpec& plan, const Unit& unit, const KvHead& head,
                         Checked& shared) const {
  const Windows windows = windows_of(plan.options, plan.layer_meta(unit));
  const std::vector<Index> middle = positions_of(windows.middle);
  const Index full = windows.middle.size() * head.pair_bytes();
  for (std::size_t e = 0; e < plan.entries.size(); ++e) {
    const Entry entry = plan.entries[e];
    const Group& group = groups_[entry.cache_group];
    const CacheGroup& info = group.info;
    const Found found = find(group, cache_place(plan, unit));
    if (found.file == nullptr) {
      continue;
    }
    const Loaded loaded = read(plan, unit, entry, head, middle);
    if (!info.budget || info.algorithm == kPolicyName) {
      continue;  // layers of a policy have budgets of their own, which the file does not have
    }
    if (info.scope == "head") {
      const Index held =
          loaded.absent()
              ? 0
              : memory_figures(loaded.compressed, head, windows.middle.size()).middle_bytes;
      check_budget(held, budget_bytes(*info.budget, full), info, found.where());
    } else if (shared
                   .insert({entry.cache_group, unit.trace, unit.prompt,
                            info.scope == "layer" ? unit.layer : std::size_t{0}})
                   .second) {
      check_shared(plan, group, unit);
    }
  }
}

std::string LoadedCaches::sha256() const {
  std::string out;
  for (const std::string& path : paths_) {
    out += (out.empty() ? "" : " ") + sha256_file(path);
  }
  return out;
}

CachePlace cache_place(const PlanSpec& plan, const Unit& unit) {
  return {plan.prompt_meta(unit).id, plan.layer_meta(unit).layer, unit.kv_head};
}

}  // namespace kvbench
