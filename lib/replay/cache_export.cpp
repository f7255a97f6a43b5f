#include "replay/cache_export.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "replay/head_cache.hpp"
#include "replay/loaded_caches.hpp"
#include "report/schema.hpp"
#include "trace/caches.hpp"

namespace kvbench {
namespace {

// Identifies the run: the plan and the shard.
std::string identity(const PlanSpec& plan) {
  return fmt::format("{} {}/{}", plan.hash(), plan.options.shard_index, plan.options.shard_count);
}

// Jobs of one algorithm, parameters, budget and seed.
struct JobGroup {
  CacheGroup info;
  std::vector<Index> jobs;  // of this shard, ascending
};

// Over all jobs of the plan, so that groups have the same names in every shard.
std::vector<JobGroup> groups_of(const PlanSpec& plan) {
  std::map<std::tuple<std::string, std::string, std::optional<double>, std::uint64_t>, std::size_t>
      known;
  std::vector<JobGroup> out;
  const Range jobs = plan.shard_jobs();
  const auto entries = static_cast<Index>(plan.entries.size());
  for (Index e = 0; e < entries; ++e) {
    for (Index job = e; job < plan.jobs(); job += entries) {
      const Entry& entry = plan.entry_of(job);
      const Variant& variant = plan.variant_of(plan.unit_of(job), entry);
      const std::string name = variant.label();
      const std::string params = variant.label_params();
      const auto [at, fresh] =
          known.emplace(std::tuple{name, params, entry.budget, entry.seed}, out.size());
      if (fresh) {
        const Scope scope =
            variant.policy_params.empty() ? variant.scope() : Scope::layers;  // of a policy
        out.push_back({{fmt::format("{:03}_{}", out.size(), name), name, params, entry.budget,
                        entry.seed, variant.scores_text(plan.options.scores),
                        scope == Scope::head    ? "head"
                        : scope == Scope::layer ? "layer"
                                                : "layers"},
                       {}});
      }
      if (jobs.contains(job)) {
        out[at->second].jobs.push_back(job);
      }
    }
  }
  return out;
}

}  // namespace

void check_cache_export(const PlanSpec& plan) {
  std::map<std::string, std::size_t> traces;
  for (const Unit& unit : plan.units) {
    const std::string& id = plan.prompt_meta(unit).id;
    const std::size_t first = traces.emplace(id, unit.trace).first->second;
    if (first != unit.trace) {
      throw InputError(fmt::format(
          "--export-caches: {} and {} both have a prompt {}, expected different prompt ids or one "
          "trace",
          plan.trace_names[first], plan.trace_names[unit.trace], id));
    }
  }
}

bool check_earlier_caches(const PlanSpec& plan) {
  const std::string& out = plan.options.export_caches;
  const auto folder = resolved_path(std::filesystem::absolute(out)).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw InputError(fmt::format("--export-caches: {}: no such folder, expected an existing one",
                                 folder.string()));
  }
  if (!plan.options.resume || !std::filesystem::exists(out)) {
    return false;
  }
  if (CacheReader(out).meta().plan != identity(plan)) {
    throw InputError(fmt::format("{}: is of another run, expected the file of {} or none", out,
                                 plan.options.out));
  }
  return true;
}

std::vector<std::byte> exported_cache(const JobResult& result) {
  const std::string& status = result.rows.front().status;
  if (result.cache) {
    return to_bytes(*result.cache);
  }
  if (status_kind(status) != "infeasible") {
    return {};
  }
  HeadCache none;
  none.scoring_queries = result.rows.front().scoring_queries;
  none.infeasible = status.substr(std::string_view("infeasible: ").size());
  return to_bytes(none);
}

void export_caches(const PlanSpec& plan, const std::vector<std::string>& trace_sha256,
                   const std::function<std::vector<std::byte>(Index job)>& cache_of) {
  const ReplayOptions& o = plan.options;
  CacheWriter writer(o.export_caches, {trace_sha256, std::string(name(o.protocol)), o.sink,
                                       o.recent, o.queries, identity(plan)});
  for (const JobGroup& group : groups_of(plan)) {
    if (group.jobs.empty()) {
      continue;
    }
    writer.begin_group(group.info);
    for (const Index job : group.jobs) {
      const std::vector<std::byte> bytes = cache_of(job);
      if (!bytes.empty()) {
        const Unit& unit = plan.unit_of(job);
        writer.put(cache_place(plan, unit), cache_from_bytes(bytes), plan.trace_meta(unit).dtype);
      }
    }
  }
  writer.close();
}

}  // namespace kvbench
