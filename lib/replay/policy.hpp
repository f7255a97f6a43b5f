// Policies: an algorithm and a budget for each layer, run like one algorithm (docs/policies.md).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "replay/grid.hpp"

namespace kvbench {

struct Policy {
  struct Layer {
    Variant variant;
    double budget = 0.0;  ///< fraction of the middle's full bytes
  };

  std::string name;               ///< of the file, without .json
  std::string sha256;             ///< of the file
  double budget = 0.0;            ///< fraction of the middle's full bytes over all layers
  std::map<Index, Layer> layers;  ///< by the layer's index in the model; not empty

  /// Column `params` of the rows: name=NAME;sha256=FIRST8.
  std::string params() const;
};

/// Reads a policy. Throws InputError (file, layer, got, expected) if the file is no policy, a layer
/// is listed twice, an algorithm is not exactly one, has a size of its own or shares its budget
/// over layers, or the mean of the layers' budgets exceeds the policy's.
Policy read_policy(const std::string& path);

/// Appends a variant per file. Its `scores` text is the widest of the layers'. Throws InputError as
/// read_policy(), and for two files of one name.
void add_policies(const std::vector<std::string>& paths, Scores scores,
                  std::vector<Variant>& variants);

/// Returns a layer's variant of a policy's variant. Throws InputError if the policy lacks it.
Variant policy_layer(const Variant& policy, Index layer);

}  // namespace kvbench
