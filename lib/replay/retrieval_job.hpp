// A job of the retrieval protocol on one KV head: build the index, search, attend to what each
// query reads, measure. The cache stays whole. A method's own figures are never trusted.
#pragma once

#include "replay/job.hpp"

namespace kvbench {

/// Throws std::logic_error if reads violate the contract (algorithms/contract.hpp): lists of a
/// wrong number of queries; tokens out of order, not in the task, or also in the fixed set; weights
/// of a wrong number, negative or not finite; impossible counts.
void check_reads(const Reads& reads, const Task& task);

/// Runs one job. An exception of the method becomes the rows' status. Throws as run_guarded().
JobResult run_retrieval_job(const HeadContext& context, const Entry& entry,
                            const ShareOrError* share = nullptr);

}  // namespace kvbench
