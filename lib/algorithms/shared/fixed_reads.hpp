// Reads that are the same for all queries.
#pragma once

#include "algorithms/contract.hpp"

namespace kvbench {

/// Every query reads `held`; there is no index.
std::unique_ptr<ReadIndex> fixed_reads(Compressed held);

}  // namespace kvbench
