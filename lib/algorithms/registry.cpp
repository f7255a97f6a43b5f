#include "algorithms/registry.hpp"

#include <fmt/format.h>

#include <set>
#include <stdexcept>

#include "algorithms/methods.hpp"
#include "core/did_you_mean.hpp"
#include "core/error.hpp"

namespace kvbench {

std::span<const Method> methods() {
  static const std::vector<Method> all = [] {
    std::vector<Method> list = {
#define KVBENCH_METHOD(stem) method_##stem::make(),
#include "algorithms/methods.inc"
#undef KVBENCH_METHOD
    };
    std::set<std::string> names;
    for (const Method& m : list) {
      if (!names.insert(m.info.name).second) {
        throw std::logic_error("duplicate method: " + m.info.name);
      }
      if (!m.info.family) {
        throw std::logic_error("method without family: " + m.info.name);
      }
    }
    return list;
  }();
  return all;
}

const Method& find_method(std::string_view name) {
  std::vector<std::string> names;
  for (const Method& m : methods()) {
    if (m.info.name == name) {
      return m;
    }
    names.push_back(m.info.name);
  }
  if (name == "d2o-merge") {
    throw InputError(
        "no algorithm 'd2o-merge': what it computed is now count-merge; the paper's D2O is d2o");
  }
  throw InputError(fmt::format("no algorithm '{}'{}, expected one of {}", name,
                               did_you_mean(name, names), fmt::join(names, ", ")));
}

}  // namespace kvbench
