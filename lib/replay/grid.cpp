#include "replay/grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "algorithms/composition.hpp"
#include "algorithms/named.hpp"
#include "algorithms/registry.hpp"
#include "algorithms/size.hpp"
#include "core/error.hpp"

namespace kvbench {
namespace {

constexpr std::size_t kMostVariants = 100000;

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
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

// One listed value: a plain one as it stands, or a:b or a:b:step.
std::vector<std::string> expand_value(const std::string& spec, const std::string& text) {
  std::vector<std::string> parts = split(text, ':');
  if (parts.size() == 1) {
    return parts;
  }
  double from = 0.0;
  double to = 0.0;
  double step = 1.0;
  if (parts.size() > 3 || !number(parts[0], from) || !number(parts[1], to) ||
      (parts.size() == 3 && !number(parts[2], step)) || !(step > 0.0) || !(from <= to)) {
    throw InputError(fmt::format(
        "--algorithm {}: range '{}', expected a:b or a:b:step with a <= b, step > 0", spec, text));
  }
  const double count = std::floor((to - from) / step + 1e-9) + 1.0;
  if (!(count <= static_cast<double>(kMostVariants))) {
    throw InputError(
        fmt::format("--algorithm {}: range '{}' has {:.0f} values, expected at most {}", spec, text,
                    count, kMostVariants));
  }
  std::vector<std::string> out;
  for (double i = 0.0; i < count; i += 1.0) {
    // Twelve digits: 3 * 0.1 is written 0.3, not 0.30000000000000004.
    out.push_back(fmt::format("{:.12g}", from + i * step));
  }
  return out;
}

// NAME or A+B -> the methods.
Variant name_variant(const std::string& name) {
  const auto plus = name.find('+');
  Variant out;
  out.method = &find_method(name.substr(0, plus));
  out.rest = plus == std::string::npos ? nullptr : &find_method(name.substr(plus + 1));
  return out;
}

// The parameters that a variant's methods take where these are given.
std::vector<ParamSpec> specs_of(const Variant& v, const std::map<std::string, std::string>& given) {
  return v.rest == nullptr ? params_of(*v.method, given)
                           : composition_params(*v.method, *v.rest, given);
}

void expand(const std::string& spec, std::vector<Variant>& out) {
  const auto colon = spec.find(':');
  Variant variant = name_variant(spec.substr(0, colon));
  std::vector<std::map<std::string, std::string>> grid(1);
  const std::string rest = colon == std::string::npos ? "" : spec.substr(colon + 1);
  for (const std::string& item : rest.empty() ? std::vector<std::string>{} : split(rest, ';')) {
    const auto equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw InputError(fmt::format("--algorithm {}: got '{}', expected key=value", spec, item));
    }
    const std::string key = item.substr(0, equals);
    if (grid.front().count(key) > 0) {
      throw InputError(fmt::format("--algorithm {}: parameter {} is given twice", spec, key));
    }
    std::vector<std::map<std::string, std::string>> next;
    for (const std::string& listed : split(item.substr(equals + 1), ',')) {
      for (const std::string& value : expand_value(spec, listed)) {
        for (auto point : grid) {
          point[key] = value;
          next.push_back(std::move(point));
        }
        if (next.size() > kMostVariants) {
          throw InputError(
              fmt::format("--algorithm {}: more than {} combinations", spec, kMostVariants));
        }
      }
    }
    grid = std::move(next);
  }
  for (const auto& point : grid) {
    variant.params = Params(variant.name(), specs_of(variant, point), point);
    variant.check();
    out.push_back(variant);
  }
}

// What may stand in place of KEY=VALUES: settings that the method declares.
enum class Declared { grid, authors };

// "NAME:grid" and "NAME:authors" -> NAME and which; nothing for all else.
std::optional<std::pair<std::string, Declared>> declared(const std::string& spec) {
  const auto colon = spec.find(':');
  const std::string rest = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (rest != "grid" && rest != "authors") {
    return {};
  }
  return std::pair(spec.substr(0, colon), rest == "grid" ? Declared::grid : Declared::authors);
}

void expand_declared(const Method& method, Declared what, std::vector<Variant>& out) {
  const MethodInfo& info = method.info;
  const std::string authors = info.authors.empty() ? info.name : info.name + ":" + info.authors;
  expand(authors, out);
  if (what == Declared::grid) {
    expand(info.name, out);
    for (const std::string& settings : info.grid) {
      expand(info.name + ":" + settings, out);
    }
  }
}

// Every method that runs under the protocol: its default, or what it declares.
void expand_all(const std::string& protocol, std::optional<Declared> what,
                std::vector<Variant>& out) {
  const std::size_t begin = out.size();
  for (const Method& m : methods()) {
    if (Variant{&m, {}, nullptr}.runs_under(protocol)) {
      what ? expand_declared(m, *what, out) : expand(m.info.name, out);
    }
  }
  for (std::size_t i = begin; i < out.size(); ++i) {
    out[i].by_all = true;
  }
}

// By registry order, then parameter by parameter; numbers by value, so that T=2 precedes T=10.
bool before(const Variant& a, const Variant& b) {
  // Compositions stand behind all plain methods.
  if ((a.rest != nullptr) != (b.rest != nullptr)) {
    return b.rest != nullptr;
  }
  if (a.method != b.method || a.rest != b.rest) {
    return std::pair(a.method, a.rest) < std::pair(b.method, b.rest);
  }
  const auto& own = a.params.values();
  const auto& other = b.params.values();
  // Which parameters there are may depend on their values: the first difference decides.
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

// Of variants in order; of two alike the one that was named.
void drop_repeated(std::vector<Variant>& variants) {
  std::vector<Variant> out;
  for (Variant& v : variants) {
    if (!out.empty() && out.back().method == v.method && out.back().rest == v.rest &&
        out.back().params.canonical() == v.params.canonical()) {
      out.back().by_all = out.back().by_all && v.by_all;
    } else {
      out.push_back(std::move(v));
    }
  }
  variants = std::move(out);
}

}  // namespace

std::string Variant::name() const {
  return rest == nullptr ? method->info.name : method->info.name + "+" + rest->info.name;
}

const std::vector<std::string>& Variant::sizes() const {
  static const std::vector<std::string> composed = size_names();
  return rest == nullptr ? method->info.sizes : composed;
}

std::vector<Variant::Part> Variant::parts() const {
  std::vector<Part> out;
  if (rest == nullptr) {
    out.push_back({method, params, ""});
  } else {
    for (const Method* m : {method, rest}) {
      out.push_back({m, part_params(*m, params), part_prefix(*m)});
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {  // grows: a named method may name others
    const Part whole = out[i];
    for (const Method* m : named_methods(*whole.method, whole.params)) {
      out.push_back({m, part_params(*m, whole.params), whole.prefix + part_prefix(*m)});
    }
  }
  return out;
}

bool Variant::random() const {
  return any_part([](const Part& p) { return p.method->info.random(p.params); });
}

bool Variant::sees_evaluated() const {
  return any_part([](const Part& p) { return p.method->info.sees_evaluated; });
}

bool Variant::sees_queries() const {
  return any_part(
      [](const Part& p) { return p.method->info.sees_evaluated || p.method->info.scores; });
}

bool Variant::reads_rope() const {
  return any_part([](const Part& p) { return p.method->info.reads_rope; });
}

bool Variant::reads_o_proj() const {
  return any_part([](const Part& p) { return p.method->info.reads_o_proj; });
}

Scope Variant::scope() const {
  const Part first = parts().front();
  const MethodInfo& info = first.method->info;
  return info.scope_of != nullptr ? info.scope_of(first.params) : info.scope;
}

std::optional<Variant::Queries> Variant::queries(Range scoring, Range middle) const {
  std::optional<Queries> out;
  for (const Part& p : parts()) {
    const MethodInfo& info = p.method->info;
    if (!info.scores) {
      continue;
    }
    Range asked = {0, scoring.end};
    if (info.middle_queries_only != nullptr && info.middle_queries_only(p.params)) {
      asked = {middle.begin, std::min(middle.end, scoring.end)};
    } else if (info.query_window != nullptr) {
      asked.begin = std::max<Index>(0, scoring.end - info.query_window(p.params));
    }
    const Index had = Range{std::max(asked.begin, scoring.begin), asked.end}.size();
    out = out.value_or(Queries{});
    out->had = std::max(out->had, had);
    out->asked = std::max(out->asked, asked.size());
    out->none = out->none || had == 0;
    out->fewer = out->fewer || had < asked.size();
  }
  return out;
}

Variant Variant::resolved(const LayerFacts& layer) const {
  std::map<std::string, std::string> changed;
  for (const Part& p : parts()) {
    if (p.method->info.resolve != nullptr) {
      for (const auto& [key, value] : p.method->info.resolve(p.params, layer)) {
        changed[p.prefix + key] = value;
      }
    }
  }
  return {method, params.with(changed), rest, by_all};
}

Task Variant::surveyed(const Task& task) const {
  return rest == nullptr ? task : first_task(*method, task, params);
}

Survey Variant::survey(const Task& task) const {
  return method->survey(task, parts().front().params);
}

std::vector<Share> Variant::share(std::span<const Survey> surveys) const {
  return method->share(surveys, parts().front().params);
}

std::optional<Index> Variant::allowed_bytes(const Task& task) const {
  if (task.share == nullptr) {
    return task.budget_bytes;
  }
  return rest == nullptr ? task.share->tokens * task.head.pair_bytes()
                         : composition_bytes(task, params);
}

bool Variant::runs_under(const std::string& protocol) const {
  return protocol == "stream" ? rest == nullptr && method->open_stream != nullptr
                              : method->compress != nullptr;
}

Index Variant::scratch_bytes(const LayerFacts& layer, Index middle, Index kept) const {
  Index most = 0;
  for (const Part& p : parts()) {
    if (p.method->info.scratch_bytes != nullptr) {
      most = std::max(most, p.method->info.scratch_bytes(p.params, layer, middle, kept));
    }
  }
  return most;
}

Compressed Variant::compress(const Task& task) const {
  return rest == nullptr ? method->compress(task, params) : compose(*method, *rest, task, params);
}

bool Variant::sized() const {
  return sizes().empty() || std::any_of(sizes().begin(), sizes().end(),
                                        [&](const std::string& s) { return !params.is_auto(s); });
}

void Variant::check() const {
  for (const Part& p : parts()) {
    if (p.method->info.check != nullptr) {
      p.method->info.check(p.params);
    }
  }
  if (rest != nullptr) {
    check_composition(*rest, params);
  }
}

std::vector<std::string> split_algorithms(const std::string& text) {
  const std::size_t colon = text.find(':');
  std::vector<std::string> out = split(text.substr(0, colon), ',');
  if (colon != std::string::npos) {
    out.back() += text.substr(colon);
  }
  return out;
}

std::vector<Variant> expand_algorithms(const std::vector<std::string>& specs,
                                       const std::string& protocol) {
  std::vector<Variant> out;
  std::vector<std::string> listed;
  for (const std::string& spec : specs) {
    for (std::string& one : split_algorithms(spec)) {
      listed.push_back(std::move(one));
    }
  }
  for (const std::string& spec : listed) {
    const auto what = declared(spec);
    if (spec == "all") {
      expand_all(protocol, {}, out);
    } else if (what && what->first == "all") {
      expand_all(protocol, what->second, out);
    } else if (what) {
      const Variant named = name_variant(what->first);
      if (named.rest != nullptr) {
        throw InputError(fmt::format(
            "--algorithm {}: a composition declares no settings, expected one method", spec));
      }
      expand_declared(*named.method, what->second, out);
    } else {
      expand(spec, out);
    }
  }
  if (out.empty()) {
    throw InputError("--algorithm: none given, expected at least one (kvbench list)");
  }
  for (const Variant& v : out) {
    if (!v.runs_under(protocol)) {
      throw InputError(fmt::format("{}: does not run under --protocol {}, expected --protocol {}",
                                   v.name(), protocol,
                                   protocol == "stream" ? "prefill" : "stream"));
    }
  }
  std::sort(out.begin(), out.end(), before);
  drop_repeated(out);
  return out;
}

std::vector<std::uint64_t> parse_seeds(const std::string& text) {
  const auto whole = [&](const std::string& part) {
    std::uint64_t x = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), x);
    if (error != std::errc() || end != part.data() + part.size()) {
      throw InputError(
          fmt::format("--seeds: got '{}', expected N, A:B (without B) or a list A,B,C", text));
    }
    return x;
  };
  std::vector<std::uint64_t> out;
  const std::vector<std::string> range = split(text, ':');
  const std::vector<std::string> list = split(text, ',');
  if (list.size() > 1) {
    for (const std::string& part : list) {
      out.push_back(whole(part));
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
  const std::uint64_t begin = range.size() == 2 ? whole(range[0]) : 0;
  const std::uint64_t end = whole(range.back());
  if (range.size() > 2 || end <= begin || end - begin > 1000000) {
    throw InputError(fmt::format(
        "--seeds: got '{}', expected N, A:B (without B) or a list A,B,C with 1 to 1000000 seeds",
        text));
  }
  for (std::uint64_t s = begin; s < end; ++s) {
    out.push_back(s);
  }
  return out;
}

}  // namespace kvbench
