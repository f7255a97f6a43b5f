#include "algorithms/nested_methods.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "algorithms/registry.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

std::map<std::string, std::string> under_prefix(const Method& part,
                                                const std::map<std::string, std::string>& all) {
  std::map<std::string, std::string> own;
  const std::string prefix = part_prefix(part);
  for (const auto& [key, value] : all) {
    if (key.rfind(prefix, 0) == 0) {
      own[key.substr(prefix.size())] = value;
    }
  }
  return own;
}

const Method& find_named_method(const Method& m, const ParamSpec& spec, const std::string& value) {
  try {
    const Method& out = find_method(value);
    spec.takes(out);
    return out;
  } catch (const InputError& e) {
    throw InputError(fmt::format("{}: parameter {}: got '{}', expected {} ({})", m.info.name,
                                 spec.name, value, allowed(spec), e.what()));
  }
}

}  // namespace

std::string part_prefix(const Method& part) {
  return part.info.name + ".";
}

bool can_select(const Method& m) {
  const MethodInfo& info = m.info;
  return info.holds <= Holds::weighted_tokens && m.compress != nullptr &&
         info.usual_facts().scope == Scope::head &&
         std::ranges::find(info.sizes, "tokens") != info.sizes.end();
}

std::vector<ParamSpec> params_of(const Method& m, const std::map<std::string, std::string>& given) {
  std::vector<ParamSpec> out = m.info.params;
  for (const Component& part : m.components) {
    if (!part.prefix.empty()) {
      add_part_params(*part.method, given, out);
    }
  }
  for (const ParamSpec& spec : m.info.params) {
    const std::string& value = spec.value_in(given);
    if (spec.names_method(value)) {
      add_part_params(find_named_method(m, spec, value), given, out);
    }
  }
  return out;
}

void add_part_params(const Method& part, const std::map<std::string, std::string>& given,
                     std::vector<ParamSpec>& out) {
  const std::vector<std::string>& sizes = part.info.sizes;
  for (ParamSpec spec : params_of(part, under_prefix(part, given))) {
    if (std::ranges::find(sizes, spec.name) == sizes.end()) {
      spec.name = part_prefix(part) + spec.name;
      out.push_back(std::move(spec));
    }
  }
}

Params part_params(const Method& part, const Params& all) {
  const std::map<std::string, std::string> own = under_prefix(part, all.values());
  return {part.info.name, params_of(part, own), own};
}

void add_part_diag(const Method& part, const Figures& from, Figures& to) {
  for (const auto& [key, value] : from) {
    to.emplace_back(part_prefix(part) + key, value);
  }
}

std::vector<const Method*> named_methods(const Method& m, const Params& params) {
  std::vector<const Method*> out;
  for (const ParamSpec& spec : m.info.params) {
    if (spec.kind == ParamKind::method && spec.names_method(params.text(spec.name))) {
      out.push_back(&find_named_method(m, spec, params.text(spec.name)));
    }
  }
  return out;
}

}  // namespace kvbench
