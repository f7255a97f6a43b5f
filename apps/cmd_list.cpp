#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/composition.hpp"
#include "algorithms/named.hpp"
#include "algorithms/registry.hpp"
#include "commands.hpp"
#include "replay/grid.hpp"

namespace kvbench {
namespace {

using Json = nlohmann::ordered_json;

// What is shown of a method, or of a composition.
struct Shown {
  MethodInfo info;
  std::vector<std::string> protocols;
  std::vector<std::string> parts;  // of a composition
  bool selects = false;            // can_select
};

Shown shown(const Method& m) {
  Shown out{m.info, {}, {}, can_select(m)};
  if (m.compress != nullptr) {
    out.protocols.emplace_back("prefill");
  }
  if (m.open_stream != nullptr) {
    out.protocols.emplace_back("stream");
  }
  return out;
}

// A composition has no text of its own: it is said of its parts.
Shown shown(const Method& a, const Method& b) {
  Shown out;
  MethodInfo& info = out.info;
  info.name = fmt::format("{}+{}", a.info.name, b.info.name);
  info.params = composition_params(a, b);
  info.summary = fmt::format("{} keeps tokens in a share of the bytes, {} represents the rest",
                             a.info.name, b.info.name);
  info.source =
      fmt::format("{}: {}; {}: {}", a.info.name, a.info.source, b.info.name, b.info.source);
  info.scores = a.info.scores || b.info.scores;
  info.sees_evaluated = a.info.sees_evaluated || b.info.sees_evaluated;
  info.scope = a.info.scope;
  out.protocols = {"prefill"};
  out.parts = {a.info.name, b.info.name};
  return out;
}

// By NAME or A+B. Throws InputError where there is none such.
Shown find_shown(const std::string& name) {
  const std::size_t plus = name.find('+');
  const Method& first = find_method(name.substr(0, plus));
  return plus == std::string::npos ? shown(first)
                                   : shown(first, find_method(name.substr(plus + 1)));
}

// Truth, scores and estimate of every method are computed on the device, and the operations that
// attention/backend.hpp offers (docs/gpu.md).
const std::vector<std::string> kDevices{"cpu", "cuda"};

std::string words(const std::vector<std::string>& all) {
  return fmt::format("{}", fmt::join(all, " "));
}

// Which queries it uses.
const char* queries_text(const MethodInfo& info) {
  return info.sees_evaluated ? "evaluated" : info.scores ? "scoring" : "none";
}

std::string_view family_text(const MethodInfo& info) {
  return info.family ? name(*info.family) : "composition";
}

void print_all() {
  fmt::print("{:<19} {:<15} {:<9} {:<10} {:<13} {}\n", "name", "protocols", "devices", "queries",
             "family", "what it does");
  for (const Method& m : methods()) {
    const Shown s = shown(m);
    fmt::print("{:<19} {:<15} {:<9} {:<10} {:<13} {}\n", m.info.name, words(s.protocols),
               words(kDevices), queries_text(m.info), family_text(m.info), m.info.summary);
  }
  fmt::print(
      "\nqueries: those that an algorithm looks at; scoring are the ones before the evaluated.\n"
      "family: --algorithm @eviction is all of one; @agnostic is all that look at no query.\n"
      "kvbench list NAME shows an algorithm's source and parameters. A+B composes two under "
      "prefill:\nA keeps tokens in a share of the bytes, B represents the rest "
      "(oracle+balancekv:share=0.25).\n");
}

void print_one(const Shown& s) {
  const MethodInfo& info = s.info;
  fmt::print("{}: {}\n", info.name, info.summary);
  fmt::print("  source      {}\n", info.source);
  if (!info.departures.empty()) {
    fmt::print("  departures  {}\n", info.departures);
  }
  fmt::print("  family      {}\n", family_text(info));
  fmt::print("  protocols   {}\n  devices     {}\n", words(s.protocols), words(kDevices));
  fmt::print("  size        {}\n",
             info.sizes.empty() ? std::string("fixed")
                                : fmt::format("--budget or {}", fmt::join(info.sizes, ", ")));
  fmt::print("  queries     {}\n", queries_text(info));
  if (info.scope != Scope::head) {
    fmt::print("  budget      shared by the heads of {}\n",
               info.scope == Scope::layer ? "a layer" : "all replayed layers");
  }
  if (info.keeps_tokens) {
    fmt::print("  composes    can lead a composition A+B\n");
  }
  if (s.selects) {
    fmt::print("  selects     can say which tokens attention-matching keeps (keys={})\n",
               info.name);
  }
  if (info.params.empty()) {
    fmt::print("  no parameters\n");
    return;
  }
  std::size_t width = 0;
  for (const ParamSpec& p : info.params) {
    width = std::max(width, p.name.size());
  }
  fmt::print("  parameters\n");
  for (const ParamSpec& p : info.params) {
    fmt::print("    {:<{}}  {}{}\n", p.name, width, p.doc,
               p.unit.empty() ? "" : fmt::format(" [{}]", p.unit));
    fmt::print("    {:<{}}  default {}; {}\n", "", width, p.fallback, allowed(p));
  }
  if (!info.authors.empty()) {
    fmt::print("  authors     the source's setting, {}:authors\n    {}\n", info.name, info.authors);
  }
  if (!info.grid.empty()) {
    fmt::print("  grid        what tuning tries beside the default, {}:grid\n    {}\n", info.name,
               fmt::join(info.grid, "\n    "));
  }
}

const char* kind_text(ParamKind kind) {
  switch (kind) {
    case ParamKind::integer: return "integer";
    case ParamKind::real: return "real";
    case ParamKind::choice: return "choice";
    case ParamKind::flag: return "flag";
    case ParamKind::method: return "method";
  }
  return "";
}

Json to_json(const Shown& s) {
  const MethodInfo& info = s.info;
  const Scope scope = info.scope;
  Json out{{"name", info.name},
           {"family", std::string(family_text(info))},
           {"summary", info.summary},
           {"source", info.source},
           {"departures", info.departures},
           {"parts", s.parts},
           {"protocols", s.protocols},
           {"devices", kDevices},
           {"queries", queries_text(info)},
           {"sizes", info.sizes},
           {"budget_shared_by", scope == Scope::head    ? "head"
                                : scope == Scope::layer ? "layer"
                                                        : "layers"},
           {"composes", info.keeps_tokens},
           {"selects", s.selects},
           {"parameters", Json::array()},
           {"authors", info.authors},
           {"grid", info.grid}};
  for (const ParamSpec& p : info.params) {
    Json param{{"name", p.name},      {"kind", kind_text(p.kind)}, {"default", p.fallback},
               {"unit", p.unit},      {"allowed", allowed(p)},     {"choices", p.choices},
               {"description", p.doc}};
    if (p.kind == ParamKind::integer || p.kind == ParamKind::real) {
      param["minimum"] = p.min;
      param["maximum"] = p.max;
    }
    out["parameters"].push_back(std::move(param));
  }
  return out;
}

void print_json(const std::string& name) {
  Json all = Json::array();
  if (name.empty()) {
    for (const Method& m : methods()) {
      all.push_back(to_json(shown(m)));
    }
  } else {
    all.push_back(to_json(find_shown(name)));
  }
  fmt::print("{}\n", all.dump(2));
}

// CSV: a line per setting that tuning tries, parameters as in column `params` of a result table.
void print_grids(const std::string& name) {
  fmt::print("algorithm,setting,params\n");
  for (const Method& m : methods()) {
    if (!name.empty() && m.info.name != name) {
      continue;
    }
    const Protocol protocol = m.compress != nullptr ? Protocol::prefill : Protocol::stream;
    const auto canonical = [&](const std::string& spec) {
      return expand_algorithms({spec}, protocol).front().params.canonical();
    };
    const std::string usual = canonical(m.info.name);
    const std::string authors = canonical(m.info.name + ":authors");
    for (const Variant& v : expand_algorithms({m.info.name + ":grid"}, protocol)) {
      const std::string& params = v.params.canonical();
      fmt::print("{},{},{}\n", m.info.name,
                 params == usual     ? "default"
                 : params == authors ? "authors"
                                     : "grid",
                 params);
    }
  }
}

}  // namespace

void add_list(CLI::App& app) {
  const auto name = std::make_shared<std::string>();
  const auto grids = std::make_shared<bool>(false);
  const auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("list", "List algorithms, or one algorithm's parameters");
  sub->add_option("algorithm", *name, "Algorithm, or composition A+B, to show in full")
      ->type_name("ALGORITHM");
  CLI::Option* grid = sub->add_flag(
      "--grid", *grids, "Print as CSV every setting that tuning tries: --algorithm NAME:grid");
  sub->add_flag("--json", *json, "Print one JSON array with an object per algorithm")
      ->excludes(grid);
  sub->callback([name, grids, json] {
    if (*grids) {
      if (!name->empty()) {
        find_method(*name);  // throws on an unknown one; a composition declares no settings
      }
      print_grids(*name);
    } else if (*json) {
      print_json(*name);
    } else if (name->empty()) {
      print_all();
    } else {
      print_one(find_shown(*name));
    }
  });
}

}  // namespace kvbench
