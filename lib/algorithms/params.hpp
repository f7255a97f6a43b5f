// Parameters of a method.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct Method;

/// `method` is a choice that may also be the name of a registered method; that method's parameters
/// then join, with its name and a dot before theirs (algorithms/nested_methods.hpp).
/// `name` is that of something in a trace (core/extra.hpp: is_set_name).
enum class ParamKind { integer, real, choice, flag, method, name };

/// One parameter. `fallback` is its default as text; "auto" means "not given" and is allowed only
/// where it is the default.
struct ParamSpec {
  std::string name;
  ParamKind kind = ParamKind::real;
  std::string fallback;
  double min = 0.0;                  ///< inclusive; integer and real
  double max = 0.0;                  ///< inclusive
  std::vector<std::string> choices;  ///< choice and method
  std::string unit;                  ///< "tokens", "", ...
  std::string doc;
  /// method: throws InputError where that method cannot stand here, saying what was expected.
  void (*takes)(const Method&) = nullptr;
  std::string expected = {};  ///< method: what else than `choices` there may be, for people

  /// Whether the value names a method.
  bool names_method(const std::string& value) const;
  /// The value given to it, or its default.
  const std::string& value_in(const std::map<std::string, std::string>& given) const;
};

ParamSpec integer_param(std::string name, std::string fallback, double min, double max,
                        std::string unit, std::string doc);
ParamSpec real_param(std::string name, std::string fallback, double min, double max,
                     std::string unit, std::string doc);
ParamSpec choice_param(std::string name, std::vector<std::string> choices, std::string doc);
ParamSpec method_param(std::string name, std::vector<std::string> choices, std::string expected,
                       void (*takes)(const Method&), std::string doc);
ParamSpec name_param(std::string name, std::string fallback, std::string doc);
ParamSpec flag_param(std::string name, bool fallback, std::string doc);

/// The groups' parameters, one group after another.
std::vector<ParamSpec> joined(const std::vector<std::vector<ParamSpec>>& groups);

/// Every parameter of one method with a value: given or default.
class Params {
 public:
  Params() = default;
  /// Checks `given` against `specs`. Errors: InputError naming `method`, the parameter, what was
  /// got and what is allowed (all names, on an unknown one).
  Params(std::string_view method, const std::vector<ParamSpec>& specs,
         const std::map<std::string, std::string>& given);

  /// The same with some values replaced, unchecked: by what a method resolved from a trace.
  Params with(const std::map<std::string, std::string>& values) const;

  bool is_auto(std::string_view name) const { return text(name) == "auto"; }
  /// Errors of all four: InputError where the parameter does not exist or is auto.
  Index integer(std::string_view name) const;
  double real(std::string_view name) const;
  bool flag(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  /// What `meaning` says of the parameter's text.
  template <class T>
  T choice(std::string_view name, const std::map<std::string_view, T>& meaning) const {
    return meaning.at(text(name));
  }

  /// The name that errors begin with.
  const std::string& method() const { return method_; }
  /// "key=value;key=value", keys sorted, defaults written out, numbers shortest.
  const std::string& canonical() const { return canonical_; }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  void write_canonical();

  std::string method_;
  std::map<std::string, std::string> values_;
  std::string canonical_;
};

/// The range or the choices of a parameter, as `kvbench list` and errors print it.
std::string allowed(const ParamSpec& spec);

}  // namespace kvbench
