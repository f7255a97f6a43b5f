// Labels for kept sets in a figure, as short as distinguishes them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct KeptSetting {
  std::string algorithm;
  std::string params;            ///< canonical `key=value;key=value`
  std::string budget_requested;  ///< as in the file, may be empty
  std::string seed;
};

/// Collects all settings, then labels each: the algorithm, then ` key=value` for the budget
/// (`budget_requested`), parameters and `seed` that differ within that algorithm. An empty budget
/// is omitted.
class KeptLabels {
 public:
  void add(const KeptSetting& setting);
  /// `setting` must have been added.
  std::string label(const KeptSetting& setting) const;

 private:
  /// Values seen, by algorithm and name.
  std::map<std::pair<std::string, std::string>, std::set<std::string>> seen_;
};

}  // namespace kvbench
