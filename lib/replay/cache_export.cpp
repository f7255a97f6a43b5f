#include "replay/cache_export.hpp"

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "replay/head_cache.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

// Identifies the run: the plan and the shard.
std::string identity(const PlanSpec& plan) {
  return fmt::format("{} {}/{}", plan.hash(), plan.options.shard_index, plan.options.shard_count);
}

}  // namespace

void CacheExport::check(const PlanSpec& plan) {
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

std::filesystem::path CacheExport::journal_path(const PlanSpec& plan) {
  return plan.options.export_caches + ".part";
}

CacheExport::CacheExport(const PlanSpec& plan)
    : plan_(plan),
      lock_(plan.options.export_caches),
      journal_(journal_path(plan), identity(plan), plan.options.resume) {
  std::map<std::tuple<std::string, std::string, std::optional<double>, std::uint64_t>, std::size_t>
      known;
  const Range jobs = plan.shard_jobs();
  const auto entries = static_cast<Index>(plan.entries.size());
  // Over all jobs of the plan, so that groups have the same names in every shard.
  for (Index e = 0; e < entries; ++e) {
    for (Index job = e; job < plan.jobs(); job += entries) {
      const Entry& entry = plan.entry_of(job);
      const Variant& variant = plan.variant_of(plan.unit_of(job), entry);
      const std::string name = variant.label();
      const std::string params = variant.label_params();
      const auto [at, fresh] =
          known.emplace(std::tuple{name, params, entry.budget, entry.seed}, groups_.size());
      if (fresh) {
        const Scope scope =
            variant.policy_params.empty() ? variant.scope() : Scope::layers;  // of a policy
        groups_.push_back({fmt::format("{:03}_{}", groups_.size(), name), name, params,
                           entry.budget, entry.seed, variant.scores_text(plan.options.scores),
                           scope == Scope::head    ? "head"
                           : scope == Scope::layer ? "layer"
                                                   : "layers"});
        jobs_.emplace_back();
      }
      if (jobs.contains(job)) {
        jobs_[at->second].push_back(job);
        group_of_.emplace(job, at->second);
      }
    }
  }
  if (plan.options.resume && std::filesystem::exists(plan.options.export_caches)) {
    file_ = std::make_unique<CacheReader>(plan.options.export_caches);
    for (std::size_t g = 0; g < file_->groups().size(); ++g) {
      file_groups_.emplace(file_->groups()[g].name, g);
    }
  }
}

void CacheExport::check_earlier(const PlanSpec& plan) {
  const std::string& out = plan.options.export_caches;
  if (out.empty()) {
    return;
  }
  const auto folder = resolved_path(std::filesystem::absolute(out)).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw InputError(fmt::format("--export-caches: {}: no such folder, expected an existing one",
                                 folder.string()));
  }
  if (plan.options.resume && std::filesystem::exists(out) &&
      CacheReader(out).meta().plan != identity(plan)) {
    throw InputError(fmt::format("{}: is of another run, expected the file of {} or none", out,
                                 plan.options.out));
  }
}

bool CacheExport::in_file(Index job) const {
  const auto group = file_groups_.find(groups_[group_of_.at(job)].name);
  return group != file_groups_.end() && file_->has(group->second, place(job));
}

bool CacheExport::agrees(Index job, std::string_view status) const {
  return status_kind(status) == "failed" || journal_.has(job) || in_file(job);
}

void CacheExport::write(Index job, const HeadCache& cache) {
  journal_.append(job, to_bytes(cache));
}

std::optional<HeadCache> CacheExport::find(Index job) const {
  if (journal_.has(job)) {
    return cache_from_bytes(journal_.read(job));
  }
  const auto group = file_groups_.find(groups_[group_of_.at(job)].name);
  if (group == file_groups_.end()) {
    return std::nullopt;
  }
  const LayerMeta& l = plan_.layer_meta(plan_.unit_of(job));
  return file_->read(group->second, place(job), {l.n, l.d, l.dv});
}

void CacheExport::finish(const std::vector<std::string>& trace_sha256) {
  const ReplayOptions& o = plan_.options;
  if (!file_ || !journal_.empty()) {
    CacheWriter writer(o.export_caches, {trace_sha256, std::string(name(o.protocol)), o.sink,
                                         o.recent, o.queries, identity(plan_)});
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (jobs_[g].empty()) {
        continue;
      }
      writer.begin_group(groups_[g]);
      for (const Index job : jobs_[g]) {
        if (const auto cache = find(job)) {
          const DType dtype = plan_.trace_meta(plan_.unit_of(job)).dtype;
          writer.put(place(job), *cache, dtype);
        }
      }
    }
    writer.close();
  }
  journal_.remove();
}

}  // namespace kvbench
