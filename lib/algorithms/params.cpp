#include "algorithms/params.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "core/extra.hpp"
#include "core/parse_number.hpp"

namespace kvbench {
namespace {

bool read_number(std::string_view text, double& out) {
  return parse_number(text, out) && std::isfinite(out);
}

std::string checked(std::string_view method, const ParamSpec& spec, const std::string& text) {
  const auto reject = [&] {
    throw InputError(fmt::format("{}: parameter {}: got '{}'{}, expected {}", method, spec.name,
                                 text, did_you_mean(text, spec.choices), allowed(spec)));
  };
  if (text == "auto" && spec.fallback == "auto") {
    return text;
  }
  switch (spec.kind) {
    case ParamKind::choice:
      if (std::ranges::find(spec.choices, text) == spec.choices.end()) {
        reject();
      }
      return text;
    case ParamKind::name:
      if (!is_set_name(text) || text == "auto") {
        reject();
      }
      return text;
    case ParamKind::method: return text;  // checked when the name is expanded
    case ParamKind::flag:
      if (text == "true" || text == "1") {
        return "true";
      }
      if (text == "false" || text == "0") {
        return "false";
      }
      reject();
      break;
    case ParamKind::integer:
    case ParamKind::real: {
      double x = 0.0;
      if (!read_number(text, x) || !(spec.min <= x && x <= spec.max) ||
          (spec.kind == ParamKind::integer && x != std::floor(x))) {
        reject();
      }
      return spec.kind == ParamKind::integer ? fmt::format("{}", static_cast<Index>(x))
                                             : fmt::format("{}", x == 0.0 ? 0.0 : x);
    }
  }
  return text;
}

}  // namespace

ParamSpec integer_param(std::string name, std::string fallback, double min, double max,
                        std::string unit, std::string doc) {
  return {std::move(name), ParamKind::integer, std::move(fallback), min, max, {},
          std::move(unit), std::move(doc)};
}

ParamSpec real_param(std::string name, std::string fallback, double min, double max,
                     std::string unit, std::string doc) {
  return {std::move(name), ParamKind::real, std::move(fallback), min, max, {},
          std::move(unit), std::move(doc)};
}

ParamSpec choice_param(std::string name, std::vector<std::string> choices, std::string doc) {
  std::string fallback = choices.front();
  return {std::move(name), ParamKind::choice, std::move(fallback), 0.0, 0.0, std::move(choices), "",
          std::move(doc)};
}

ParamSpec method_param(std::string name, std::vector<std::string> choices, std::string expected,
                       void (*takes)(const Method&), std::string doc) {
  ParamSpec out = choice_param(std::move(name), std::move(choices), std::move(doc));
  out.kind = ParamKind::method;
  out.expected = std::move(expected);
  out.takes = takes;
  return out;
}

bool ParamSpec::names_method(const std::string& value) const {
  return kind == ParamKind::method && std::ranges::find(choices, value) == choices.end();
}

const std::string& ParamSpec::value_in(const std::map<std::string, std::string>& given) const {
  const auto it = given.find(name);
  return it == given.end() ? fallback : it->second;
}

ParamSpec name_param(std::string name, std::string fallback, std::string doc) {
  return {std::move(name), ParamKind::name, std::move(fallback), 0.0, 0.0, {}, "", std::move(doc)};
}

ParamSpec flag_param(std::string name, bool fallback, std::string doc) {
  return {std::move(name), ParamKind::flag, fallback ? "true" : "false", 0.0, 0.0, {}, "",
          std::move(doc)};
}

std::vector<ParamSpec> joined(const std::vector<std::vector<ParamSpec>>& groups) {
  std::vector<ParamSpec> out;
  for (const std::vector<ParamSpec>& group : groups) {
    out.insert(out.end(), group.begin(), group.end());
  }
  return out;
}

std::string allowed(const ParamSpec& spec) {
  const std::string otherwise = spec.fallback == "auto" ? " or auto" : "";
  switch (spec.kind) {
    case ParamKind::choice: return fmt::format("{}{}", fmt::join(spec.choices, "|"), otherwise);
    case ParamKind::method:
      return fmt::format("{}{}{}", fmt::join(spec.choices, "|"), spec.choices.empty() ? "" : " or ",
                         spec.expected);
    case ParamKind::flag: return "true|false";
    case ParamKind::name:
      return fmt::format("a name of letters, digits, '-', '_' and '.'{}", otherwise);
    case ParamKind::integer:
      return fmt::format("an integer in [{:.0f}, {:.0f}]{}", spec.min, spec.max, otherwise);
    case ParamKind::real:
      return fmt::format("a number in [{}, {}]{}", spec.min, spec.max, otherwise);
  }
  return "";
}

Params::Params(std::string_view method, const std::vector<ParamSpec>& specs,
               const std::map<std::string, std::string>& given)
    : method_(method) {
  for (const auto& [key, value] : given) {
    if (std::ranges::find(specs, key, &ParamSpec::name) == specs.end()) {
      std::vector<std::string> names;
      std::ranges::transform(specs, std::back_inserter(names), &ParamSpec::name);
      std::ranges::sort(names);
      throw InputError(fmt::format(
          "{}: no parameter '{}'{}, expected {}", method, key, did_you_mean(key, names),
          names.empty() ? std::string("none") : fmt::format("{}", fmt::join(names, ", "))));
    }
  }
  for (const ParamSpec& spec : specs) {
    values_[spec.name] = checked(method, spec, spec.value_in(given));
  }
  write_canonical();
}

Params Params::with(const std::map<std::string, std::string>& values) const {
  Params out = *this;
  for (const auto& [key, value] : values) {
    out.values_.at(key) = value;
  }
  out.write_canonical();
  return out;
}

void Params::write_canonical() {
  canonical_.clear();
  for (const auto& [key, value] : values_) {
    canonical_ += fmt::format("{}{}={}", canonical_.empty() ? "" : ";", key, value);
  }
}

const std::string& Params::text(std::string_view name) const {
  const auto it = values_.find(std::string(name));
  if (it == values_.end()) {
    throw InputError(fmt::format("{}: no parameter '{}'", method_, name));
  }
  return it->second;
}

double Params::real(std::string_view name) const {
  double x = 0.0;
  if (!read_number(text(name), x)) {
    throw InputError(
        fmt::format("{}: parameter {}: got '{}', expected a number", method_, name, text(name)));
  }
  return x;
}

Index Params::integer(std::string_view name) const {
  return static_cast<Index>(real(name));
}

bool Params::flag(std::string_view name) const {
  return text(name) == "true";
}

}  // namespace kvbench
