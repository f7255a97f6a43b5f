// Internal to lib/trace: the names of a caches file (docs/caches.md).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "core/types.hpp"
#include "trace/hdf5_util.hpp"

namespace kvbench::caches {

inline constexpr const char* kFormat = "kvbench-caches";
inline constexpr Index kVersion = 1;

inline constexpr const char* kFormatName = "format";
inline constexpr const char* kVersionName = "version";
inline constexpr const char* kTraceHash = "trace_sha256";
inline constexpr const char* kProtocol = "protocol";
inline constexpr const char* kSink = "sink";
inline constexpr const char* kRecent = "recent";
inline constexpr const char* kQueries = "queries";
inline constexpr const char* kPlan = "plan";

inline constexpr const char* kAlgorithm = "algorithm";
inline constexpr const char* kParams = "params";
inline constexpr const char* kBudget = "budget";
inline constexpr const char* kSeed = "seed";
inline constexpr const char* kScores = "scores";
inline constexpr const char* kScope = "scope";

inline constexpr const char* kKeys = "k";
inline constexpr const char* kValues = "v";
inline constexpr const char* kLogWeight = "log_weight";
inline constexpr const char* kToken = "token";
inline constexpr const char* kKeysDen = "k_den";
inline constexpr const char* kLogWeightDen = "log_weight_den";
inline constexpr const char* kAuxBytes = "aux_bytes";
inline constexpr const char* kPayloadBytes = "payload_bytes";
inline constexpr const char* kQuantised = "quantised";
inline constexpr const char* kTransientBytes = "transient_bytes";
inline constexpr const char* kCompressMs = "compress_ms";
inline constexpr const char* kScoringQueries = "scoring_queries";
inline constexpr const char* kInfeasible = "infeasible";
inline constexpr const char* kDegenerate = "degenerate";
inline constexpr const char* kDiag = "diag";

/// Below a group.
inline std::string entry_path(std::string_view prompt, Index layer, Index kv_head) {
  return fmt::format("prompts/{}/layers/{}/{}", prompt, layer, kv_head);
}

}  // namespace kvbench::caches
