// From `--algorithm NAME[:key=v1,v2,..;key=a:b:step]` to variants: one for every combination of the
// listed values. Ranges: core/number_range.hpp.
#pragma once

#include "algorithms/variant.hpp"

namespace kvbench {

/// A range of a spec and its expansion.
struct SpecRange {
  std::string key;                  ///< parameter
  std::string text;                 ///< "1:4"
  std::vector<std::string> values;  ///< "1", "2", "3"
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
