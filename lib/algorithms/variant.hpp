// A method with parameters: what a grid expands to and a job runs.
#pragma once

#include "algorithms/contract.hpp"
#include "algorithms/protocol.hpp"

namespace kvbench {

struct Policy;

/// Column `algorithm` of a policy's rows.
inline constexpr std::string_view kPolicyName = "policy";

/// The parameter of all methods of the prefill protocol: kv-head (default) or query-head. Among a
/// variant's parameters only if it is query-head.
inline constexpr std::string_view kStoreParam = "store";

/// A method (find_algorithm.hpp) with one set of parameters.
struct Variant {
  const Method* method = nullptr;
  Params params;
  /// Set that selected the variant ("all", "@eviction", "snap*"); empty: named by the user.
  /// Variants of a set are skipped if a layer lacks what they need.
  std::string by_set = {};
  /// Selected by a set or by NAME:grid. Of settings that a layer makes equal, such run once.
  bool declared = false;
  /// evaluate and policies: column `scores` of the rows; otherwise empty.
  std::string declared_scores = {};
  /// Chooses the variants of layers and heads (algorithms/policy.hpp); then `method` and `params`
  /// are those of the policy's first part. Null in the variants of parts.
  std::shared_ptr<const Policy> policy = nullptr;
  std::shared_ptr<const JobFacts> known = nullptr;  ///< facts() of these parameters, after check()
  std::optional<JobFacts> policy_facts = {};        ///< of a policy: of its parts, the widest scope
  std::string policy_params = {};                   ///< of a policy and its parts: column `params`
  std::optional<double> policy_budget = {};         ///< of a policy's part: its budget

  /// Scoring queries that a variant asks for and gets. Counts are maxima over its methods.
  struct Queries {
    Index had = 0;       ///< positions with queries to score with
    Index asked = 0;     ///< positions that the definition asks for
    bool none = false;   ///< some method scores and has no query
    bool fewer = false;  ///< some method has fewer queries than it asks for
  };

  /// "A", "A+B" or "A@Q".
  const std::string& name() const { return method->info.name; }
  /// What the method's facts say, and of what it reads, those of all methods that run for it.
  /// Throws InputError if parameter values contradict each other.
  JobFacts facts() const { return known != nullptr ? *known : merged_facts(); }
  /// The name that determines its random numbers.
  std::string drawn_as() const;
  /// Columns `algorithm` and `params` of the rows.
  std::string label() const { return policy_params.empty() ? name() : std::string(kPolicyName); }
  std::string label_params() const {
    return policy_params.empty() ? params.canonical() : policy_params;
  }
  bool random() const;  ///< of a policy: whether any part's is
  bool sees_evaluated() const { return facts().evaluated; }
  /// Whether it uses queries. If not, `scores` is `none`.
  bool sees_queries() const { return facts().sees_queries(); }
  /// Names of extra query sets and of stored scores that it reads. May repeat.
  std::vector<std::string> extra_sets() const;
  std::vector<std::string> named_scores() const;
  /// Column `scores` of the rows under `--scores scores`.
  std::string scores_text(Scores scores) const;
  /// Heads that share one budget. A policy: the widest of its parts.
  Scope scope() const;
  /// Whether `store=query-head` is among the parameters: each query head of a group has a cache of
  /// its own (replay/query_head_sets.hpp). Prefill, methods whose scope is a head.
  bool by_query_head() const { return params.values().contains(std::string(kStoreParam)); }
  /// Scoring queries. A method that reads extra queries scores with those of the layer's sets
  /// `extra`. nullopt if none scores with queries.
  std::optional<Queries> queries(Range scoring, Range middle,
                                 std::span<const ExtraSetInfo> extra = {}) const;
  /// Returns a copy with all parameters resolved. Throws InputError if the layer lacks what it
  /// needs.
  Variant resolved(const LayerFacts& layer) const;
  bool runs_under(Protocol protocol) const;
  /// Whether all that it holds can be restricted to a layer's sliding window.
  bool fits_windows() const { return unplaced() == nullptr; }
  /// About the most bytes of a job's own memory: of all methods that run for it
  /// (MethodInfo::copies).
  Index job_bytes(const LayerFacts& layer, std::optional<double> budget) const;
  Compressed compress(const Task& task) const { return method->compress(task, params); }
  /// Most bytes that the middle may hold, by the budget or by the task's share. nullopt: native
  /// parameters.
  std::optional<Index> allowed_bytes(const Task& task) const;

  /// Whether no budget applies: the parameters fix the size, or there is only one.
  bool sized() const;
  /// Keeps the facts. Throws InputError if parameter values contradict each other.
  void check();

 private:
  JobFacts merged_facts() const;
  /// A method that runs for the variant, with its parameters.
  struct Use {
    const Method* method;
    Params params;
    std::string prefix;  // of its parameters' names in Variant::params
  };
  /// The method, its components, and the methods that their parameters name.
  std::vector<Use> uses() const;
  /// A method that makes entries without a position; null: none.
  const Method* unplaced() const;
  /// Throws InputError if the layer has a sliding window that the variant does not fit.
  void check_window(const LayerFacts& layer) const;
};

}  // namespace kvbench
