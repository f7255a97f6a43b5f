// `--export-caches C.h5`: what each job's method holds, written in the plan's order when all jobs
// are done.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "replay/job_result.hpp"
#include "replay/plan_spec.hpp"

namespace kvbench {

/// Throws InputError if two traces of the plan have a prompt of the same id.
void check_cache_export(const PlanSpec& plan);

/// Whether the plan resumes and C.h5 is there. Throws InputError if its folder is missing, or if
/// the plan resumes and C.h5 is of another run. Only with --export-caches.
bool check_earlier_caches(const PlanSpec& plan);

/// The bytes of what a finished job's method holds, also why it holds nothing; none if it failed.
std::vector<std::byte> exported_cache(const JobResult& result);

/// Writes C.h5. `trace_sha256`: by trace of the plan. `cache_of`: exported_cache() of a job. Throws
/// IoError.
void export_caches(const PlanSpec& plan, const std::vector<std::string>& trace_sha256,
                   const std::function<std::vector<std::byte>(Index job)>& cache_of);

}  // namespace kvbench
