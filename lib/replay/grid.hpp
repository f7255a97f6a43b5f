// From `--algorithm NAME[:key=v1,v2,..;key=a:b:step]` to variants: every combination of the listed
// values, each a method with all of its parameters resolved. Ranges: core/number_range.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algorithms/contract.hpp"
#include "replay/options.hpp"

namespace kvbench {

/// A method, a composition A+B of two, or A@Q, what one holds stored by a quantizer; with one set
/// of parameters.
struct Variant {
  const Method* method = nullptr;
  Params params;
  const Method* rest = nullptr;       ///< B of a composition; `method` is A
  const Method* quantizer = nullptr;  ///< Q of an A@Q; `method` is A
  /// The set that asked for it ("all", "@eviction", "snap*"); empty: it was named. One of a set is
  /// left out where a layer lacks what it needs.
  std::string by_set = {};
  /// What the rows' `scores` say where it is no registered method (evaluate); else empty.
  std::string declared_scores = {};

  /// What a variant's definition asks of the scoring queries, and what the trace gives it.
  struct Queries {
    Index had = 0;       ///< positions whose queries score; the maximum over the parts
    Index asked = 0;     ///< positions whose queries the definition asks for
    bool none = false;   ///< some part that scores has no query at all
    bool fewer = false;  ///< some part has fewer than it asks for
  };

  std::string name() const;
  /// Parameters any of which fixes the size.
  const std::vector<std::string>& sizes() const;
  bool random() const;
  bool sees_evaluated() const { return any_part(&MethodInfo::sees_evaluated); }
  /// Whether it uses any query; if not, `scores` is `none`.
  bool sees_queries() const;
  bool reads_rope() const { return any_part(&MethodInfo::reads_rope); }
  bool reads_o_proj() const { return any_part(&MethodInfo::reads_o_proj); }
  /// Extra queries and stored scores that some part reads; names may repeat.
  std::vector<std::string> extra_sets() const;
  std::vector<std::string> named_scores() const;
  /// What the rows' `scores` say under `--scores given`.
  std::string scores_text(Scores given) const;
  /// Which heads share one budget; of A+B and A@Q those of A.
  Scope scope() const;
  /// Of what scores; nothing where no part scores with queries before the evaluated ones.
  /// A part that reads extra queries scores with these, of the layer's sets `extra`.
  std::optional<Queries> queries(Range scoring, Range middle,
                                 std::span<const ExtraSetInfo> extra = {}) const;
  /// With what depends on the layer resolved. Throws InputError where the layer lacks something.
  Variant resolved(const LayerFacts& layer) const;
  bool runs_under(Protocol protocol) const;
  /// What its methods state of a job (MethodInfo::scratch_bytes): a composition's parts run one
  /// after the other, a method that another names within it. `budget`: a fraction, or none.
  Index scratch_bytes(const LayerFacts& layer, Index middle, std::optional<double> budget) const;
  Compressed compress(const Task& task) const;
  /// Surveys and shares of a scope wider than a head: the method's, or A's.
  Survey survey(const Task& task) const;
  std::vector<Share> share(std::span<const Survey> surveys) const;
  /// What `survey` is asked for: the task, or A's.
  Task surveyed(const Task& task) const;
  /// Bytes that it may hold at most: the budget, or by the share that `task` carries; none: native
  /// parameters say.
  std::optional<Index> allowed_bytes(const Task& task) const;

  /// Whether its own parameters fix its size, or it has one size only: no budget applies.
  bool sized() const;

  /// Throws InputError where values that are each in range do not go together.
  void check() const;

 private:
  struct Part {
    const Method* method;
    Params params;
    std::string prefix;  // of its parameters in the variant's
  };
  /// The method, or both of A+B or A@Q, then the methods that their parameters name.
  std::vector<Part> parts() const;
  bool any_part(bool MethodInfo::*fact) const;
  bool any_part(bool (*MethodInfo::*fact)(const Params&)) const;
  /// Throws InputError where the layer has a window and some part holds what it cannot hide.
  void check_window(const LayerFacts& layer) const;
  /// Tokens that it keeps at most of `middle`.
  Index kept_tokens(const LayerFacts& layer, Index middle, std::optional<double> budget) const;
};

/// A range of a spec, and what it became.
struct SpecRange {
  std::string key;   ///< the parameter
  std::string text;  ///< as given: "1:4"
  std::vector<std::string> values;
  std::string end;       ///< where a step lands on the end: the value that is left out; else empty
  std::string with_end;  ///< the range that has it: "1:5"; else empty
};

/// Expands specs into variants in canonical order: the registry's order, then the parameters by
/// value. The order and repetition of `specs` do not matter; commas before a spec's first colon
/// separate specs: "a,b,c:key=v1,v2" is a, b and c:key=v1,v2. Sets stand for methods that run under
/// `protocol`: "all" for every one, "@eviction" for a Family, "@agnostic" for those that look at no
/// query, a pattern of the shell ("snap*") for those of such names. A method that does not run is
/// refused when named. What is not named besides has `by_set` set. "NAME:authors" stands for the
/// setting of the method's source, "NAME:grid" for that, the default and all settings of the
/// declared grid; "SET:authors" and "SET:grid" for those of a set's methods. Ranges a:b:step
/// leave b out; a:b steps by 1. `ranges`: where to put them, each once. Errors: InputError naming
/// the spec and what was expected.
std::vector<Variant> expand_algorithms(const std::vector<std::string>& specs,
                                       Protocol protocol = Protocol::prefill,
                                       std::vector<SpecRange>* ranges = nullptr);

/// Whether a name stands for several methods: "all", "@merging", "snap*".
bool is_method_set(const std::string& name);

/// The methods of such a set, in the registry's order. Throws InputError where there is no such set
/// or no method matches.
std::vector<const Method*> methods_of_set(const std::string& set);

/// All sets but patterns: "all", "@agnostic", "@reference", ...
std::vector<std::string> method_set_names();

/// "10" -> 0..9; "3:10" -> 3..9; "1,5,9" and "1,5:8" as listed; ascending. Errors: InputError.
std::vector<std::uint64_t> parse_seeds(const std::string& text);

/// The shortest such text of ascending seeds, at least one: as A:B where none between is left out.
std::string seeds_text(const std::vector<std::uint64_t>& seeds);

}  // namespace kvbench
