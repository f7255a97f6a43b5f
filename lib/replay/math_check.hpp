// What `--gpu-math fast` costs in accuracy, measured where it was used: the first head of a run is
// replayed in exact mode too.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "replay/plan.hpp"
#include "replay/shared.hpp"

namespace kvbench {

/// One entry's job on one KV head in both modes. Of a random method the plan's first seed.
struct MathCheck {
  std::string algorithm;
  std::string params;
  std::optional<double> budget;
  std::uint64_t seed = 0;
  Index tokens = 0;          ///< kept exactly (at a stream's end) in exact mode
  double differing = 0.0;    ///< fraction of these that fast mode does not keep, in [0, 1]
  double rel_error = 0.0;    ///< exact mode, mean over the head's rows
  double difference = 0.0;   ///< fast mode's mean less that
  bool same_status = false;  ///< whether both rows have the same status; else the rest is 0
};

struct MathChecks {
  std::string trace, prompt;  ///< of the head that was compared
  Index layer = 0;
  Index kv_head = 0;
  std::vector<MathCheck> entries;  ///< in the plan's order

  /// The largest fraction of differing tokens, and the largest |difference| / rel_error among
  /// entries whose rel_error exceeds `floor`: an error of rounding has no digits to compare.
  double most_differing() const;
  double most_difference(double floor = 1e-6) const;
};

/// Replays every entry (first seeds alone) on `unit` by plan.open_device and by plan.open_exact.
/// Empty entries where the plan has no such mode, or `stop` became true. Errors: IoError.
MathChecks check_math(const Plan& plan, const Unit& unit, const SharedBudgets& shares, int threads,
                      const std::atomic<bool>& stop);

/// For the manifest: null where nothing was compared.
nlohmann::json to_json(const MathChecks& checks);

}  // namespace kvbench
