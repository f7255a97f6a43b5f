// Names for the kept sets of several algorithms in one picture: as short as still tells them apart.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// What a kept set is of.
struct KeptSetting {
  std::string algorithm;
  std::string params;            ///< canonical `key=value;key=value`
  std::string budget_requested;  ///< as in the file; may be empty
  std::string seed;
};

/// Learns all settings first, then labels each: the algorithm, then ` key=value` for the budget,
/// every parameter, and the seed in which that algorithm's settings differ from one another, under
/// the names `budget_requested`, the parameter's own, and `seed`. A budget that is empty is left
/// out of its label.
class KeptLabels {
 public:
  void add(const KeptSetting& setting);
  /// `setting` has been added.
  std::string label(const KeptSetting& setting) const;

 private:
  /// Values seen, by algorithm and name.
  std::map<std::pair<std::string, std::string>, std::set<std::string>> seen_;
};

}  // namespace kvbench
