#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/find_algorithm.hpp"
#include "algorithms/grid.hpp"
#include "algorithms/nested_methods.hpp"
#include "algorithms/registry.hpp"
#include "commands.hpp"
#include "help.hpp"
#include "option_names.hpp"
#include "terminal.hpp"

namespace kvbench {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> protocols_of(const Method& m) {
  std::vector<std::string> out;
  for (const Protocol protocol : kProtocols) {
    if (Variant{&m, {}}.runs_under(protocol)) {
      out.emplace_back(name(protocol));
    }
  }
  return out;
}

std::vector<ParamSpec> params_listed(const Method& m) {
  return m.joint == 0 ? m.info.params : params_of(m, {});
}

JobFacts usual_facts(const Method& m) {
  return m.joint == 0 ? m.info.usual_facts()
                      : Variant{&m, Params(m.info.name, params_of(m, {}), {})}.facts();
}

// Every method uses the device for truth, scores, estimates and the operations of
// attention/backend.hpp (docs/gpu.md).
const std::vector<std::string> kDevices{"cpu", "cuda"};

// Queries used with default parameters.
const char* queries_text(const JobFacts& facts) {
  const auto any = [&](auto&& fact) { return std::ranges::any_of(facts.scoring, fact); };
  return facts.evaluated                                                            ? "evaluated"
         : facts.scoring.empty()                                                    ? "none"
         : any([](const Scoring& s) { return s.sets.empty() && s.stored.empty(); }) ? "scoring"
         : any([](const Scoring& s) { return !s.sets.empty(); })                    ? "extra"
                                                                                    : "stored";
}

std::string_view family_text(const MethodInfo& info) {
  return info.family ? name(*info.family) : "composition";
}

// Methods of a set, all methods for an empty name; empty for the name of one algorithm.
std::vector<const Method*> methods_listed(const std::string& name) {
  return name.empty() || is_method_set(name) ? methods_of_set(name.empty() ? "all" : name)
                                             : std::vector<const Method*>();
}

struct Absent {
  std::string_view names;
  std::string reason;
};

// Also in docs/methods.md.
const std::vector<Absent> kAbsent = {
    {"KVzap, FastKVzip", "gates trained on hidden states: use external-scores"},
    {"KVgrad", "gradients of the model's last hidden states, which a trace lacks"},
    {"HeadKV", "heads' budgets are measured by running the model on prompts made for it"},
    {"DMS, MLA", "the model changes: dump a trace of that model"},
    {"NACL, FINCH", "a trace does not mark the question whose tokens score"},
    {"KVCompose",
     "composite tokens are a layout, scores are kvzip's; its budgets of layers are not built"},
    {"BLASST",
     "skips values by a running maximum in a kernel's order of blocks; keys are all read"},
    {"RetroInfer", "an index with clusters that stand for unread tokens, in CPU memory"},
    {"ShadowKV, InfLLM", "values or blocks move to CPU memory, nothing is dropped"},
    {"GEAR", "replays, not built: a quantizer whose error is coded by low rank and outliers"},
    {"Scissorhands",
     "replays, not built: counts of attention below average in place of h2o's sums"}};

constexpr std::size_t kSummaryBelow = 120;  // narrower: summaries get their own lines

void print_list(const std::vector<const Method*>& list) {
  const std::optional<std::size_t> width = stdout_width();
  const bool below = width && *width < kSummaryBelow;
  fmt::print("{:<19} {:<24}  {:<9} {:<10} {}\n", "name", "protocols", "devices", "queries",
             below ? "family" : fmt::format("{:<13} what it does", "family"));
  for (const Method* m : list) {
    const MethodInfo& info = m->info;
    const std::string facts =
        fmt::format("{:<19} {:<24}  {:<9} {:<10} ", info.name, joined(protocols_of(*m)),
                    joined(kDevices), queries_text(m->info.usual_facts()));
    const std::string_view family = family_text(info);
    fmt::print(
        "{}",
        below ? fmt::format("{}{}\n{}", facts, family, hanging_indent("    ", info.summary, width))
              : hanging_indent(fmt::format("{}{:<13} ", facts, family), info.summary, width));
  }
  const std::string notes =
      "queries: those that an algorithm uses: scoring (before the evaluated ones), evaluated,\n"
      "extra (further sets of the trace) or stored (scores of another program).\n"
      "family: --algorithm @eviction selects a family, @agnostic the algorithms without queries.\n"
      "kvbench list NAME shows the source and parameters of an algorithm.\n"
      "Under retrieval, static:A=NAME reads what a prefill method holds.\n"
      "Under prefill, A+B keeps tokens by A in a share of the bytes and represents the rest by B\n"
      "(oracle+balancekv:share=0.25); A@Q quantizes what A keeps (h2o@quant-kivi:k_bits=4);\n"
      "NAME:store=query-head keeps a set per query head instead of one per KV head.\n"
      "Not included (docs/methods.md has alternatives):";
  fmt::print("\n{}", hanging_indent("", notes, width));
  for (const Absent& absent : kAbsent) {
    fmt::print("{}", hanging_indent(fmt::format("  {:<18} ", absent.names), absent.reason, width));
  }
}

void print_one(const Method& m) {
  const MethodInfo& info = m.info;
  const JobFacts facts = usual_facts(m);
  const std::vector<ParamSpec> params = params_listed(m);
  const std::optional<std::size_t> width = stdout_width();
  fmt::print("{}", hanging_indent(info.name + ": ", info.summary, width));
  const auto fact = [&](std::string_view label, const std::string& text) {
    fmt::print("{}", hanging_indent(fmt::format("  {:<12}", label), text, width));
  };
  fact("source", info.source);
  if (!info.departures.empty()) {
    fact("departures", info.departures);
  }
  fact("family", std::string(family_text(info)));
  fact("protocols", joined(protocols_of(m)));
  fact("devices", joined(kDevices));
  fact("size", info.must_fit        ? "fixed; a --budget must hold it"
               : info.sizes.empty() ? "fixed"
                                    : fmt::format("--budget or {}", fmt::join(info.sizes, ", ")));
  fact("queries", queries_text(facts));
  if (facts.scope != Scope::head) {
    fact("budget", fmt::format("shared by the heads of {}",
                               facts.scope == Scope::layer ? "a layer" : "all replayed layers"));
  }
  if (info.holds == Holds::tokens) {
    fact("composes", "can be the A of a composition A+B");
  }
  if (m.quantizer) {
    fact("stores", "can be the Q of A@Q: quantizes the entries of another method");
  }
  if (can_select(m)) {
    fact("selects",
         fmt::format("can select the tokens of attention-matching (keys={})", info.name));
  }
  if (params.empty()) {
    fmt::print("  no parameters\n");
    return;
  }
  std::size_t longest = 0;
  for (const ParamSpec& p : params) {
    longest = std::max(longest, p.name.size());
  }
  fmt::print("  parameters\n");
  for (const ParamSpec& p : params) {
    fmt::print("{}",
               hanging_indent(fmt::format("    {:<{}}  ", p.name, longest),
                              p.doc + (p.unit.empty() ? "" : fmt::format(" [{}]", p.unit)), width));
    fmt::print("{}", hanging_indent(fmt::format("    {:<{}}  ", "", longest),
                                    fmt::format("default {}; {}", p.fallback, allowed(p)), width));
  }
  if (!info.authors.empty()) {
    fmt::print("  authors     setting of the source, {}:authors\n    {}\n", info.name,
               info.authors);
  }
  if (!info.grid.empty()) {
    fmt::print("  grid        settings of tuning besides the default, {}:grid\n    {}\n", info.name,
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
    case ParamKind::name: return "name";
  }
  return "";
}

Json to_json(const Method& m) {
  const MethodInfo& info = m.info;
  const JobFacts facts = usual_facts(m);
  const Scope scope = facts.scope;
  std::vector<std::string> parts;
  for (const Component& c : m.components) {
    parts.push_back(c.method->info.name);
  }
  Json out{{"name", info.name},
           {"family", std::string(family_text(info))},
           {"summary", info.summary},
           {"source", info.source},
           {"departures", info.departures},
           {"parts", parts},
           {"protocols", protocols_of(m)},
           {"devices", kDevices},
           {"queries", queries_text(facts)},
           {"sizes", info.sizes},
           {"budget_shared_by", scope == Scope::head    ? "head"
                                : scope == Scope::layer ? "layer"
                                                        : "layers"},
           {"composes", info.holds == Holds::tokens},
           {"selects", can_select(m)},
           {"quantizes", m.quantizer.has_value()},
           {"parameters", Json::array()},
           {"authors", info.authors},
           {"grid", info.grid}};
  for (const ParamSpec& p : params_listed(m)) {
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
  const std::vector<const Method*> list = methods_listed(name);
  for (const Method* m : list) {
    all.push_back(to_json(*m));
  }
  if (list.empty()) {
    all.push_back(to_json(find_algorithm(name)));
  }
  fmt::print("{}\n", all.dump(2));
}

// CSV: one line per tuning setting, parameters as in column `params` of a result table.
void print_grids(const std::string& name) {
  std::vector<const Method*> list = methods_listed(name);
  if (list.empty()) {
    list = {
        &find_method(name)};  // throws on unknown names and compositions, which declare no settings
  }
  fmt::print("algorithm,setting,params\n");
  for (const Method* listed : list) {
    const Method& m = *listed;
    const Protocol protocol = m.compress != nullptr      ? Protocol::prefill
                              : m.open_stream != nullptr ? Protocol::stream
                                                         : Protocol::retrieval;
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
  CLI::App* sub = app.add_subcommand("list", "List algorithms, or show the parameters of one");
  sub->add_option(
         "algorithm", *name,
         "Algorithm to show in full (NAME, A+B or A@Q), or set to list (@merging, 'snap*')")
      ->type_name("ALGORITHM");
  CLI::Option* grid =
      sub->add_flag("--grid", *grids, "Print the tuning settings of --algorithm NAME:grid as CSV");
  sub->add_flag("--json", *json, "Print a JSON array with one object per algorithm")
      ->excludes(grid);
  sub->callback([name, grids, json] {
    const std::vector<const Method*> list = methods_listed(*name);
    if (*grids) {
      print_grids(*name);
    } else if (*json) {
      print_json(*name);
    } else if (!list.empty()) {
      print_list(list);
    } else {
      print_one(find_algorithm(*name));
    }
  });
}

}  // namespace kvbench
