// Parameters of a method.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

struct Method;

/// `method`: a choice or the name of a registered method, whose parameters are added under the
/// prefix "NAME." (algorithms/nested_methods.hpp). `name`: the name of something in a trace
/// (is_set_name in core/extra.hpp).
enum class ParamKind { integer, real, choice, flag, method, name };

/// One parameter. `fallback` is its default as text. "auto" means "not set" and is accepted only as
/// a default.
struct ParamSpec {
  std::string name;
  ParamKind kind = ParamKind::real;
  std::string fallback;
  double min = 0.0;                  ///< inclusive; integer and real
  double max = 0.0;                  ///< inclusive
  std::vector<std::string> choices;  ///< choice and method
  std::string unit;                  ///< "tokens", "", ...
  std::string doc;
  /// method: throws InputError if that method is not accepted here.
  void (*takes)(const Method&) = nullptr;
  std::string expected = {};  ///< method: describes accepted methods beyond `choices`

  /// Whether the value names a method.
  bool names_method(const std::string& value) const;
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

std::vector<ParamSpec> joined(const std::vector<std::vector<ParamSpec>>& groups);

/// The parameters of one method, all with values.
class Params {
 public:
  Params() = default;
  /// Checks `given` against `specs`. Throws InputError with `method`, the parameter, the value and
  /// what is expected.
  Params(std::string_view method, const std::vector<ParamSpec>& specs,
         const std::map<std::string, std::string>& given);

  /// A copy with some values replaced, unchecked.
  Params with(const std::map<std::string, std::string>& values) const;

  bool is_auto(std::string_view name) const { return text(name) == "auto"; }
  /// These throw InputError if the parameter does not exist; numbers also if it is auto.
  Index integer(std::string_view name) const;
  double real(std::string_view name) const;
  bool flag(std::string_view name) const;
  const std::string& text(std::string_view name) const;
  template <class T>
  T choice(std::string_view name, const std::map<std::string_view, T>& meaning) const {
    return meaning.at(text(name));
  }

  const std::string& method() const { return method_; }
  /// "key=value;key=value", keys sorted, defaults included, shortest numbers.
  const std::string& canonical() const { return canonical_; }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  void write_canonical();

  std::string method_;
  std::map<std::string, std::string> values_;
  std::string canonical_;
};

/// As in `kvbench list` and errors.
std::string allowed(const ParamSpec& spec);

}  // namespace kvbench
