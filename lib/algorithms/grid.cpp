#include "algorithms/grid.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>

#include "algorithms/find_algorithm.hpp"
#include "algorithms/nested_methods.hpp"
#include "algorithms/registry.hpp"
#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "core/number_range.hpp"
#include "core/parse_number.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kMaxVariants = 100000;
constexpr std::uint64_t kMaxSeeds = 1000000;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool number(const std::string& text, double& out) {
  return parse_number(text, out) && std::isfinite(out);
}

// Twelve digits: 3 * 0.1 is written 0.3, not 0.30000000000000004.
std::string short_text(double x) {
  return fmt::format("{:.12g}", x == 0.0 ? 0.0 : x);
}

// A plain value as it is, or the values of a:b or a:b:step.
std::vector<std::string> expand_value(const std::string& spec, const std::string& key,
                                      const std::string& text, std::vector<SpecRange>* ranges) {
  if (!is_range(text)) {
    return {text};
  }
  const auto range =
      parse_range<double>(fmt::format("--algorithm {}: {}", spec, key), text, kMaxVariants);
  std::vector<std::string> out;
  for (std::uint64_t i = 0; i < range.size(); ++i) {
    out.push_back(short_text(range[i]));
  }
  if (ranges != nullptr && std::ranges::none_of(*ranges, [&](const SpecRange& one) {
        return one.key == key && one.text == text;
      })) {
    ranges->push_back({key, text, out});
  }
  return out;
}

void expand(const std::string& spec, std::vector<Variant>& out,
            std::vector<SpecRange>* ranges = nullptr) {
  const auto colon = spec.find(':');
  Variant variant;
  variant.method = &find_algorithm(spec.substr(0, colon));
  std::vector<std::map<std::string, std::string>> grid(1);
  const std::string rest = colon == std::string::npos ? "" : spec.substr(colon + 1);
  for (const std::string& item : rest.empty() ? std::vector<std::string>{} : split(rest, ';')) {
    const auto equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw InputError(fmt::format("--algorithm {}: got '{}', expected key=value", spec, item));
    }
    const std::string key = item.substr(0, equals);
    if (grid.front().count(key) > 0) {
      throw InputError(fmt::format("--algorithm {}: duplicate parameter {}", spec, key));
    }
    std::vector<std::map<std::string, std::string>> next;
    for (const std::string& listed : split(item.substr(equals + 1), ',')) {
      for (const std::string& value : expand_value(spec, key, listed, ranges)) {
        for (auto point : grid) {
          point[key] = value;
          next.push_back(std::move(point));
        }
        if (next.size() > kMaxVariants) {
          throw InputError(
              fmt::format("--algorithm {}: more than {} combinations", spec, kMaxVariants));
        }
      }
    }
    grid = std::move(next);
  }
  for (auto& point : grid) {
    std::vector<ParamSpec> specs = params_of(*variant.method, point);
    if (point.contains(std::string(kStoreParam))) {
      specs.push_back(choice_param(std::string(kStoreParam), {"kv-head", "query-head"},
                                   "a cache per KV head or per query head"));
    }
    variant.params = Params(variant.name(), specs, point);
    if (variant.by_query_head() && variant.params.text(kStoreParam) == "kv-head") {
      point.erase(std::string(kStoreParam));  // the default, as without it
      variant.params = Params(variant.name(), params_of(*variant.method, point), point);
    }
    variant.check();
    out.push_back(variant);
  }
}

// Appends the authors' setting; for "grid" also the default and the declared grid.
void expand_declared(const Method& method, const std::string& what, std::vector<Variant>& out) {
  const MethodInfo& info = method.info;
  const std::size_t begin = out.size();
  expand(info.authors.empty() ? info.name : info.name + ":" + info.authors, out);
  if (what == "grid") {
    expand(info.name, out);
    for (const std::string& settings : info.grid) {
      expand(info.name + ":" + settings, out);
    }
    std::for_each(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(),
                  [](Variant& v) { v.declared = true; });
  }
}

constexpr std::array kFamilies{Family::reference, Family::eviction,     Family::sampling,
                               Family::merging,   Family::quantization, Family::retrieval};

constexpr std::string_view kAgnostic = "@agnostic";

std::string family_set(Family family) {
  return fmt::format("@{}", name(family));
}

// Returns the predicate of a set. Throws InputError if the set is unknown.
std::function<bool(const MethodInfo&)> members_of(const std::string& set) {
  if (set == "all") {
    return [](const MethodInfo&) { return true; };
  }
  if (!set.starts_with('@')) {
    return [set](const MethodInfo& m) { return ::fnmatch(set.c_str(), m.name.c_str(), 0) == 0; };
  }
  if (set == kAgnostic) {
    return [](const MethodInfo& m) { return !m.usual_facts().sees_queries(); };
  }
  for (const Family family : kFamilies) {
    if (set == family_set(family)) {
      return [family](const MethodInfo& m) { return m.family == family; };
    }
  }
  const std::vector<std::string> names = method_set_names();
  throw InputError(fmt::format("no set of algorithms '{}'{}, expected one of {}", set,
                               did_you_mean(set, names), fmt::join(names, ", ")));
}

// Appends every method of the set that runs under the protocol. `what`: "", "authors" or "grid".
void expand_set(const std::string& set, Protocol protocol, const std::string& what,
                std::vector<Variant>& out) {
  const std::size_t begin = out.size();
  std::vector<const Method*> members;
  try {
    members = methods_of_set(set);
  } catch (const InputError& error) {
    throw InputError(fmt::format("--algorithm {}: {}", set, error.what()));
  }
  for (const Method* m : members) {
    if (Variant{m, {}}.runs_under(protocol)) {
      what.empty() ? expand(m->info.name, out) : expand_declared(*m, what, out);
    }
  }
  if (out.size() == begin) {
    throw InputError(
        fmt::format("--algorithm {}: none of these algorithms runs under --protocol {}; kvbench "
                    "list says which do",
                    set, name(protocol)));
  }
  for (std::size_t i = begin; i < out.size(); ++i) {
    out[i].by_set = set;
    out[i].declared = true;
  }
}

// By registry order, then parameter by parameter; numbers by value, so that T=2 precedes T=10.
bool before(const Variant& a, const Variant& b) {
  // Plain methods, then A+B, then A@Q.
  const auto methods_of = [](const Variant& v) {
    const std::vector<Component>& parts = v.method->components;
    return std::tuple(v.method->joint, parts.empty() ? v.method : parts[0].method,
                      parts.empty() ? nullptr : parts[1].method);
  };
  if (methods_of(a) != methods_of(b)) {
    return methods_of(a) < methods_of(b);
  }
  const auto& own = a.params.values();
  const auto& other = b.params.values();
  // Which parameters there are may depend on their values, so compare at the first difference.
  const auto [x, y] = std::mismatch(own.begin(), own.end(), other.begin(), other.end());
  if (x == own.end() || y == other.end()) {
    return y != other.end();
  }
  if (x->first != y->first) {
    return x->first < y->first;
  }
  double p = 0.0;
  double q = 0.0;
  return number(x->second, p) && number(y->second, q) ? p < q : x->second < y->second;
}

// Removes duplicates of sorted variants. A duplicate counts as named if either was.
void drop_duplicates(std::vector<Variant>& variants) {
  std::vector<Variant> out;
  for (Variant& v : variants) {
    if (!out.empty() && out.back().method == v.method &&
        out.back().params.canonical() == v.params.canonical()) {
      if (v.by_set.empty()) {
        out.back().by_set.clear();
      }
      out.back().declared = out.back().declared && v.declared;
    } else {
      out.push_back(std::move(v));
    }
  }
  variants = std::move(out);
}

}  // namespace

bool is_method_set(const std::string& name) {
  return name == "all" || name.starts_with('@') || name.find_first_of("*?[") != std::string::npos;
}

std::vector<const Method*> methods_of_set(const std::string& set) {
  const auto member = members_of(set);
  std::vector<const Method*> out;
  for (const Method& m : methods()) {
    if (member(m.info)) {
      out.push_back(&m);
    }
  }
  if (out.empty()) {
    throw InputError(fmt::format("no algorithm matches '{}'; kvbench list names all", set));
  }
  return out;
}

std::vector<std::string> method_set_names() {
  std::vector<std::string> names{"all", std::string(kAgnostic)};
  std::ranges::transform(kFamilies, std::back_inserter(names), family_set);
  return names;
}

namespace {

// The first method or set that a comma separates from another's parameters, or "".
std::string name_after_parameters(const std::string& spec) {
  const std::vector<std::string> pieces = split(spec.substr(spec.find(':') + 1), ',');
  for (std::size_t i = 1; i < pieces.size(); ++i) {
    std::string name = pieces[i].substr(0, pieces[i].find_first_of(":;+@"));
    if (is_method_set(name) ||
        std::ranges::any_of(methods(), [&](const Method& m) { return m.info.name == name; })) {
      return name;
    }
  }
  return "";
}

// expand, whose errors say to repeat --algorithm where another algorithm may be meant.
void expand_listed(const std::string& spec, std::vector<Variant>& out,
                   std::vector<SpecRange>* ranges) {
  try {
    expand(spec, out, ranges);
  } catch (const InputError& e) {
    const std::string name = name_after_parameters(spec);
    if (name.empty()) {
      throw;
    }
    throw InputError(fmt::format(
        "{} (after ':' commas separate values; repeat --algorithm if {} is another algorithm)",
        e.what(), name));
  }
}

}  // namespace

std::vector<Variant> expand_algorithms(const std::vector<std::string>& specs, Protocol protocol,
                                       std::vector<SpecRange>* ranges) {
  std::vector<Variant> out;
  std::vector<std::string> listed;
  for (const std::string& spec : specs) {
    const std::size_t colon = std::min(spec.find(':'), spec.size());
    for (std::string& one : split(spec.substr(0, colon), ',')) {
      listed.push_back(std::move(one));
    }
    listed.back() += spec.substr(colon);
  }
  for (const std::string& spec : listed) {
    const std::size_t colon = std::min(spec.find(':'), spec.size());
    const std::string name = spec.substr(0, colon);
    const std::string rest = spec.substr(std::min(colon + 1, spec.size()));
    const bool declared = rest == "grid" || rest == "authors";
    if (is_method_set(name)) {
      if (!declared && colon != spec.size()) {
        throw InputError(fmt::format(
            "--algorithm {0}: got {1} with '{2}', expected {1}, {1}:grid or {1}:authors; "
            "give other methods in another --algorithm",
            spec, name, rest));
      }
      expand_set(name, protocol, rest, out);
    } else if (declared) {
      const Method& named = find_algorithm(name);
      if (named.joint != 0) {
        throw InputError(fmt::format(
            "--algorithm {}: A+B and A@Q declare no settings, expected one method", spec));
      }
      expand_declared(named, rest, out);
    } else {
      expand_listed(spec, out, ranges);
    }
  }
  if (out.empty()) {
    throw InputError("--algorithm: got none, expected at least one (kvbench list)");
  }
  for (const Variant& v : out) {
    if (!v.runs_under(protocol)) {
      std::vector<std::string> others;
      for (const Protocol other : kProtocols) {
        if (v.runs_under(other)) {
          others.push_back(fmt::format("--protocol {}", name(other)));
        }
      }
      if (protocol == Protocol::retrieval && v.runs_under(Protocol::prefill)) {
        others.push_back("static:A=" + v.method->info.name);
      }
      throw InputError(fmt::format("{}: does not run under --protocol {}, expected {}", v.name(),
                                   name(protocol), fmt::join(others, " or ")));
    }
  }
  std::sort(out.begin(), out.end(), before);
  drop_duplicates(out);
  return out;
}

std::vector<std::uint64_t> parse_seeds(const std::string& text) {
  std::vector<std::uint64_t> seeds;
  const std::vector<std::string> list = split(text, ',');
  for (const std::string& part : list) {
    if (is_range(part)) {
      const auto range = parse_range<std::uint64_t>("--seeds", part, kMaxSeeds);
      for (std::uint64_t i = 0; i < range.size(); ++i) {
        seeds.push_back(range[i]);
      }
      continue;
    }
    std::uint64_t x = 0;
    const bool number = parse_number(part, x);
    if (!number || (list.size() == 1 && (x < 1 || x > kMaxSeeds))) {
      throw InputError(fmt::format(
          "--seeds: got '{}', expected N of 1 to {}, A:B (without B) or a list of seeds and ranges",
          text, kMaxSeeds));
    }
    if (list.size() == 1) {
      seeds.resize(x);
      std::iota(seeds.begin(), seeds.end(), 0);
    } else {
      seeds.push_back(x);
    }
  }
  std::ranges::sort(seeds);
  seeds.erase(std::unique(seeds.begin(), seeds.end()), seeds.end());
  if (seeds.size() > kMaxSeeds) {
    throw InputError(
        fmt::format("--seeds: got {} seeds, expected at most {}", seeds.size(), kMaxSeeds));
  }
  return seeds;
}

std::string seeds_text(const std::vector<std::uint64_t>& seeds) {
  const bool range =
      !seeds.empty() && seeds.back() + 1 != 0 && seeds.back() - seeds.front() == seeds.size() - 1;
  if (!range && seeds.size() == 1) {
    return fmt::format("{0},{0}", seeds.front());  // alone it would be a number of seeds
  }
  return range ? fmt::format("{}:{}", seeds.front(), seeds.back() + 1)
               : fmt::format("{}", fmt::join(seeds, ","));
}

}  // namespace kvbench
