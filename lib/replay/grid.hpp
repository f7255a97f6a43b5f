// From `--algorithm NAME[:key=v1,v2,..;key=a:b:step]` to variants: one for every combination of the
// listed values. Ranges: core/number_range.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/contract.hpp"
#include "replay/options.hpp"

namespace kvbench {

struct Policy;

/// Column `algorithm` of a policy's rows.
inline constexpr std::string_view kPolicyName = "policy";

/// The parameter of all methods of the prefill protocol: kv-head (default) or query-head. Among a
/// variant's parameters only if it is query-head.
inline constexpr std::string_view kStoreParam = "store";

/// A method, a composition A+B, or A@Q (what A holds, quantized by Q), with one set of parameters.
/// Parts: these methods, and the methods that their parameters name.
struct Variant {
  const Method* method = nullptr;
  Params params;
  const Method* rest = nullptr;       ///< B of A+B
  const Method* quantizer = nullptr;  ///< Q of A@Q
  /// Set that selected the variant ("all", "@eviction", "snap*"); empty: named by the user.
  /// Variants of a set are skipped if a layer lacks what they need.
  std::string by_set = {};
  /// Selected by a set or by NAME:grid. Of settings that a layer makes equal, such run once.
  bool declared = false;
  /// evaluate and policies: column `scores` of the rows; otherwise empty.
  std::string declared_scores = {};
  /// Chooses the variants of layers and heads (replay/policy.hpp); then `method` and `params` are
  /// those of the policy's first part. Null in the variants of parts.
  std::shared_ptr<const Policy> policy = nullptr;
  std::string policy_params = {};            ///< of a policy and its parts: column `params`
  std::optional<double> policy_budget = {};  ///< of a policy's part: its budget

  /// Scoring queries that a variant asks for and gets. Counts are maxima over the parts.
  struct Queries {
    Index had = 0;       ///< positions with queries to score with
    Index asked = 0;     ///< positions that the definition asks for
    bool none = false;   ///< some part scores and has no query
    bool fewer = false;  ///< some part has fewer queries than it asks for
  };

  /// "A", "A+B" or "A@Q".
  std::string name() const;
  /// The name that determines its random numbers.
  std::string drawn_as() const;
  /// Columns `algorithm` and `params` of the rows.
  std::string label() const { return policy_params.empty() ? name() : std::string(kPolicyName); }
  std::string label_params() const {
    return policy_params.empty() ? params.canonical() : policy_params;
  }
  /// Parameters that fix the size; one of them suffices.
  const std::vector<std::string>& sizes() const;
  bool random() const;  ///< of a policy: whether any part's is
  bool sees_evaluated() const { return any_part(&MethodInfo::sees_evaluated); }
  /// Whether some part uses queries. If not, `scores` is `none`.
  bool sees_queries() const;
  bool reads_rope() const { return any_part(&MethodInfo::reads_rope); }
  bool reads_o_proj() const { return any_part(&MethodInfo::reads_o_proj); }
  /// Names of extra query sets and of stored scores that some part reads. May repeat.
  std::vector<std::string> extra_sets() const { return names_read(&MethodInfo::extra_sets); }
  std::vector<std::string> named_scores() const { return names_read(&MethodInfo::named_scores); }
  /// Column `scores` of the rows under `--scores scores`.
  std::string scores_text(Scores scores) const;
  /// Heads that share one budget. A+B and A@Q: that of A. A policy: the widest of its parts.
  Scope scope() const;
  /// Whether `store=query-head` is among the parameters: each query head of a group has a cache of
  /// its own (replay/query_head_sets.hpp). Prefill, methods whose scope is a head.
  bool by_query_head() const { return params.values().contains(std::string(kStoreParam)); }
  /// Scoring queries of the parts. A part that reads extra queries scores with those of the layer's
  /// sets `extra`. nullopt if no part scores with queries.
  std::optional<Queries> queries(Range scoring, Range middle,
                                 std::span<const ExtraSetInfo> extra = {}) const;
  /// Returns a copy with all parameters resolved. Throws InputError if the layer lacks what it
  /// needs.
  Variant resolved(const LayerFacts& layer) const;
  bool runs_under(Protocol protocol) const;
  /// About the most bytes of a job's own memory: the sum over the parts (MethodInfo::copies).
  Index job_bytes(const LayerFacts& layer, std::optional<double> budget) const;
  Compressed compress(const Task& task) const;
  /// Under the retrieval protocol, in place of compress().
  std::unique_ptr<ReadIndex> open_reads(const Task& task) const;
  /// Survey and shares of the method, or of A, if its scope is wider than a head.
  Survey survey(const Task& task) const;
  std::vector<Share> share(std::span<const Survey> surveys) const;
  /// The argument of survey(): the task, or A's part of it.
  Task surveyed(const Task& task) const;
  /// Most bytes that the middle may hold, by the budget or by the task's share. nullopt: native
  /// parameters.
  std::optional<Index> allowed_bytes(const Task& task) const;

  /// Whether no budget applies: the parameters fix the size, or there is only one.
  bool sized() const;

  /// Throws InputError if parameter values contradict each other.
  void check() const;

 private:
  using NamesHook = std::vector<std::string> (*MethodInfo::*)(const Params&);
  struct Part {
    const Method* method;
    Params params;
    std::string prefix;  // of its parameters' names in Variant::params

    std::vector<std::string> names_read(NamesHook hook) const;
  };
  /// The method, or A and B, then the methods that their parameters name, then Q.
  std::vector<Part> parts() const;
  std::vector<std::string> names_read(NamesHook hook) const;
  bool any_part(bool MethodInfo::*fact) const;
  bool any_part(bool (*MethodInfo::*fact)(const Params&)) const;
  /// Throws InputError if the layer has a sliding window and some part makes entries without a
  /// position.
  void check_window(const LayerFacts& layer) const;
};

/// A range of a spec and its expansion.
struct SpecRange {
  std::string key;                  ///< parameter
  std::string text;                 ///< "1:4"
  std::vector<std::string> values;  ///< "1", "2", "3"
  std::string end;                  ///< excluded end if a step lands on it: "4"; otherwise empty
  std::string with_end;             ///< range that includes the end: "1:5"; otherwise empty
};

/// Expands specs into variants without duplicates, by the registry's order, then by parameter
/// values. `ranges` (may be null) receives each range once.
///
///     a,b,c:key=v1,v2   a, b and c:key=v1,v2
///     key=a:b:step      a, a+step, ... without b; a:b steps by 1
///     all               all methods that run under `protocol`
///     @eviction         those of a Family; @agnostic: those that use no query
///     snap*             those that match the shell pattern
///     NAME:authors      the setting of the method's source
///     NAME:grid         the authors' setting, the default and the declared grid
///     SET:authors, SET:grid   the same for each method of a set
///
/// Throws InputError (spec, got, expected), also if a named method does not run under `protocol`.
std::vector<Variant> expand_algorithms(const std::vector<std::string>& specs,
                                       Protocol protocol = Protocol::prefill,
                                       std::vector<SpecRange>* ranges = nullptr);

/// Whether a name is a set: "all", "@merging", "snap*".
bool is_method_set(const std::string& name);

/// Methods of a set, in the registry's order. Throws InputError if the set is unknown or empty.
std::vector<const Method*> methods_of_set(const std::string& set);

/// All sets except patterns: "all", "@agnostic", "@reference", ...
std::vector<std::string> method_set_names();

/// "10" -> 0..9; "3:10" -> 3..9; "1,5:8" -> 1, 5, 6, 7. Ascending, unique. Throws InputError.
std::vector<std::uint64_t> parse_seeds(const std::string& text);

/// Inverse of parse_seeds(). `seeds` must be ascending. "A:B" if they are consecutive.
std::string seeds_text(const std::vector<std::uint64_t>& seeds);

}  // namespace kvbench
