// Policies: an algorithm and a budget for each layer or KV head, run like one algorithm
// (docs/policies.md).
#pragma once

#include "algorithms/grid.hpp"

namespace kvbench {

struct Policy {
  struct Choice {
    Variant variant;
    double budget = 0.0;  ///< fraction of the middle's full bytes
  };
  struct Layer {
    std::vector<Choice> parts;  ///< one for all KV heads, or one per KV head
    bool by_head = false;
    double bytes = 1.0;  ///< full bytes of its middle, which weigh its budget; 1: not in the file
  };

  std::string name;               ///< of the file, without .json
  std::string sha256;             ///< of the file
  std::string model;              ///< that it is for; "": the file does not say
  double budget = 0.0;            ///< fraction of the middle's full bytes over all layers
  std::map<Index, Layer> layers;  ///< by the layer's index in the model; not empty

  /// Column `params` of the rows: name=NAME;sha256=FIRST8.
  std::string params() const;
};

/// Reads a policy. Throws InputError (file, layer, got, expected) if it is no regular file or no
/// policy, a layer or KV head is listed twice, a layer has both `heads` and an algorithm, KV heads
/// are not 0, 1, ..., an algorithm is not exactly one, has a size of its own or shares its budget
/// more widely than its part, some layers have `bytes` and others do not, or the mean of the
/// layers' budgets (means over heads), weighted by their bytes, exceeds the policy's.
Policy read_policy(const std::string& path);

/// Appends a variant per file. Its `scores` text is the widest of the parts'. Throws InputError as
/// read_policy(), and for two files of one name.
void add_policies(const std::vector<std::string>& paths, Scores scores,
                  std::vector<Variant>& variants);

/// Throws InputError if the policy is for another model than `model`, the one that `trace` names.
/// The case of letters, an organisation before `/` and a revision after ` @ ` may differ.
void check_model(const Policy& policy, const std::string& trace, const std::string& model);

/// Returns the variants of a layer of `kv_heads` KV heads: one for all, or one per head. Throws
/// InputError if the policy lacks the layer, or lists another number of heads.
std::vector<Variant> policy_layer(const Variant& policy, Index layer, Index kv_heads);

/// Calls f(part) for each part of a policy.
template <class F>
void for_each_part(const Policy& policy, const F& f) {
  for (const auto& [number, layer] : policy.layers) {
    for (const Policy::Choice& part : layer.parts) {
      f(part);
    }
  }
}

}  // namespace kvbench
