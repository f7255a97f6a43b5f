#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "algorithms/named.hpp"
#include "algorithms/registry.hpp"
#include "commands.hpp"
#include "replay/grid.hpp"

namespace kvbench {
namespace {

std::string sizes_text(const MethodInfo& info) {
  return info.sizes.empty() ? "fixed" : fmt::format("--budget or {}", fmt::join(info.sizes, ", "));
}

std::string protocols_text(const Method& m) {
  return fmt::format("{}{}{}", m.compress != nullptr ? "prefill" : "",
                     m.compress != nullptr && m.open_stream != nullptr ? " " : "",
                     m.open_stream != nullptr ? "stream" : "");
}

// Truth, scores and estimate of every method are computed on the device, and the operations that
// attention/backend.hpp offers (docs/gpu.md).
constexpr const char* kDevices = "cpu cuda";

// Which queries it uses.
const char* queries_text(const MethodInfo& info) {
  return info.sees_evaluated ? "evaluated" : info.scores ? "scoring" : "none";
}

void print_all() {
  fmt::print("{:<19} {:<15} {:<9} {:<10} {}\n", "name", "protocols", "devices", "queries",
             "what it does");
  for (const Method& m : methods()) {
    fmt::print("{:<19} {:<15} {:<9} {:<10} {}\n", m.info.name, protocols_text(m), kDevices,
               queries_text(m.info), m.info.summary);
  }
  fmt::print(
      "\nqueries: those that an algorithm looks at; scoring are the ones before the evaluated.\n"
      "kvbench list NAME shows an algorithm's source and parameters. A+B composes two under "
      "prefill:\nA keeps tokens in a share of the bytes, B represents the rest "
      "(oracle+balancekv:share=0.25).\n");
}

void print_one(const Method& method) {
  const MethodInfo& info = method.info;
  fmt::print("{}: {}\n", info.name, info.summary);
  fmt::print("  source      {}\n", info.source);
  if (!info.departures.empty()) {
    fmt::print("  departures  {}\n", info.departures);
  }
  fmt::print("  protocols   {}\n  devices     {}\n  size        {}\n", protocols_text(method),
             kDevices, sizes_text(info));
  fmt::print("  queries     {}\n", queries_text(info));
  if (info.scope != Scope::head) {
    fmt::print("  budget      shared by the heads of {}\n",
               info.scope == Scope::layer ? "a layer" : "all replayed layers");
  }
  if (info.keeps_tokens) {
    fmt::print("  composes    can lead a composition A+B\n");
  }
  if (can_select(method)) {
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
  CLI::App* sub = app.add_subcommand("list", "List algorithms, or one algorithm's parameters");
  sub->add_option("algorithm", *name, "Algorithm to show in full")->type_name("ALGORITHM");
  sub->add_flag("--grid", *grids,
                "Print as CSV every setting that tuning tries: --algorithm NAME:grid");
  sub->callback([name, grids] {
    if (!name->empty()) {
      find_method(*name);  // throws on an unknown one
    }
    if (*grids) {
      print_grids(*name);
    } else if (name->empty()) {
      print_all();
    } else {
      print_one(find_method(*name));
    }
  });
}

}  // namespace kvbench
