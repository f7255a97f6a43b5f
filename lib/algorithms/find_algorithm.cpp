#include "algorithms/find_algorithm.hpp"

#include <fmt/format.h>

#include <mutex>

#include "algorithms/composition.hpp"
#include "algorithms/registry.hpp"
#include "algorithms/stored.hpp"
#include "core/error.hpp"

namespace kvbench {

const Method& find_algorithm(const std::string& name) {
  const auto joint = name.find_first_of("+@");
  const Method& first = find_method(name.substr(0, joint));
  if (joint == std::string::npos) {
    return first;
  }
  const std::string second = name.substr(joint + 1);
  if (second.find_first_of("+@") != std::string::npos) {
    throw InputError(fmt::format("{}: got three methods, expected A, A+B or A@Q", name));
  }
  static std::mutex mutex;
  static std::map<std::string, Method> compositions;
  const std::lock_guard lock(mutex);
  const auto known = compositions.find(name);
  if (known != compositions.end()) {
    return known->second;
  }
  const Method& other = find_method(second);
  return compositions
      .emplace(name, name[joint] == '+' ? composed(first, other) : stored(first, other))
      .first->second;
}

}  // namespace kvbench
