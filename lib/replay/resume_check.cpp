#include "replay/resume_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "report/csv.hpp"
#include "report/row_crc.hpp"
#include "report/schema.hpp"

namespace kvbench {
namespace {

using nlohmann::json;

struct Difference {
  std::string text;
  bool more = false;  // all that was there is here, and more
};

std::string text_of(const json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_object()) {  // an algorithm
    const std::string params = value.at("params");
    return value.at("name").get<std::string>() + (params.empty() ? "" : ":") + params;
  }
  if (value.is_array()) {
    std::string out;
    for (const json& one : value) {
      out += (out.empty() ? "" : ",") + text_of(one);
    }
    return out.empty() ? "all" : out;
  }
  return value.dump();
}

// Of the lists that a plan multiplies. `empty_is_all`: an empty one has everything.
void compare_lists(std::string_view option, const json& then, const json& now, bool empty_is_all,
                   std::vector<Difference>& out) {
  const std::set<json> had(then.begin(), then.end());
  const std::set<json> have(now.begin(), now.end());
  if (had == have) {
    return;
  }
  const bool more = empty_is_all && (had.empty() || have.empty())
                        ? have.empty()
                        : std::includes(have.begin(), have.end(), had.begin(), had.end());
  out.push_back({fmt::format("{}: got {}, it had {}", option, text_of(now), text_of(then)), more});
}

// Lists of algorithms are long: one that differs is named.
void compare_algorithms(const json& then, const json& now, std::vector<Difference>& out) {
  const auto lacking = [](const json& all, const json& from) {
    return std::ranges::find_if(
        all, [&](const json& one) { return std::ranges::find(from, one) == from.end(); });
  };
  const auto lost = lacking(then, now);
  const auto added = lacking(now, then);
  if (lost != then.end()) {
    out.push_back({fmt::format("--algorithm: it had {}, which is not given", text_of(*lost))});
  } else if (added != now.end()) {
    out.push_back(
        {fmt::format("--algorithm: got {}, which it did not have", text_of(*added)), true});
  }
}

std::vector<std::uint64_t> seeds_of(const json& value) {
  return value.is_string() ? parse_seeds(value.get<std::string>())
                           : value.get<std::vector<std::uint64_t>>();  // an earlier version
}

std::string shard_text(const std::optional<Shard>& shard) {
  return shard ? fmt::format("{}/{}", shard->index, shard->count) : "1/1";
}

std::vector<std::string> names_of(const Manifest& m) {
  std::vector<std::string> out;
  for (const TraceFile& trace : m.traces) {
    out.push_back(std::filesystem::path(trace.path).filename().string());
  }
  return out;
}

std::vector<Difference> differences(const Manifest& then, const Manifest& now) {
  std::vector<Difference> out;
  const json& had = then.configuration;
  const json& have = now.configuration;
  if (json(names_of(then)) != json(names_of(now))) {
    out.push_back({fmt::format("traces: got {}, it had {}", fmt::join(names_of(now), ","),
                               fmt::join(names_of(then), ","))});
  }
  compare_algorithms(had.at("algorithms"), have.at("algorithms"), out);
  compare_lists("--budget", had.at("budgets"), have.at("budgets"), false, out);
  const std::vector<std::uint64_t> seeds_then = seeds_of(had.at("seeds"));
  const std::vector<std::uint64_t> seeds_now = seeds_of(have.at("seeds"));
  if (seeds_then != seeds_now) {
    out.push_back(
        {fmt::format("--seeds: got {}, it had {}", seeds_text(seeds_now), seeds_text(seeds_then)),
         std::ranges::includes(seeds_now, seeds_then)});
  }
  for (const char* key : {"layers", "heads", "prompts"}) {
    compare_lists(fmt::format("--{}", key), had.at(key), have.at(key), true, out);
  }
  for (const char* key : {"protocol", "sink", "recent", "queries", "scores", "device", "precision",
                          "eval_every", "repeat", "kept", "per_query"}) {
    if (had.at(key) != have.at(key)) {
      std::string option = key;
      std::ranges::replace(option, '_', '-');
      out.push_back({fmt::format("--{}: got {}, it had {}", option, text_of(have.at(key)),
                                 text_of(had.at(key)))});
    }
  }
  if (shard_text(then.shard) != shard_text(now.shard)) {
    out.push_back(
        {fmt::format("--shard: got {}, it had {}", shard_text(now.shard), shard_text(then.shard))});
  }
  if (out.empty() && then.plan && then.plan->hash == now.plan->hash) {
    out.push_back(
        {fmt::format("--shard-costs: got '{}', it had '{}', and the part is another",
                     text_of(have.at("shard_costs")), had.value("shard_costs", std::string()))});
  } else if (out.empty()) {
    out.push_back({"what the traces or caches say of the plan"});
  }
  return out;
}

// Heads of several layers share a budget: with more layers their rows are others.
void check_layers_alone(const PlanSpec& plan, const Manifest& then, const Manifest& now) {
  const json& had = then.configuration;
  if (had.at("layers") == now.configuration.at("layers")) {
    return;
  }
  for (const Variant& v : plan.variants) {
    const json one{{"name", v.name()}, {"params", v.params.canonical()}};
    if (v.scope() == Scope::layers &&
        std::ranges::find(had.at("algorithms"), one) != had.at("algorithms").end()) {
      throw InputError(
          fmt::format("{}: --extend: --layers: {} shares a budget among all replayed layers, and "
                      "its rows would be others with more; expected the layers of the run to "
                      "extend, or another file",
                      plan.options.out, text_of(one)));
    }
  }
}

// The manifest of the table, which a later version may have written with other keys.
std::vector<Difference> readable_differences(const PlanSpec& plan, const Manifest& then,
                                             const Manifest& now) {
  try {
    return differences(then, now);
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: configuration: {}", manifest_path(plan.options.out).string(),
                                 error.what()));
  }
}

}  // namespace

std::string check_resumable(const PlanSpec& plan, const Manifest& now) {
  const std::string& out = plan.options.out;
  // One that a run left before its manifest was written holds no rows, and nothing can be mixed.
  const std::string header = checked_header_line(schema_header());
  if (!std::filesystem::exists(manifest_path(out)) &&
      std::filesystem::file_size(out) <= header.size() && header.starts_with(read_text_file(out))) {
    return "";
  }
  const Manifest then = read_manifest(out);
  check_traces_unchanged(then, out);
  const bool same = then.plan && then.plan->hash == now.plan->hash &&
                    then.plan->row_ranges == now.plan->row_ranges;
  if (!same) {
    const std::vector<Difference> all = readable_differences(plan, then, now);
    const bool more = std::ranges::all_of(all, &Difference::more) && !then.run_id.empty() &&
                      !then.shard && !now.shard;
    if (!more || !plan.options.extend) {
      std::vector<std::string> texts;
      std::ranges::transform(all, std::back_inserter(texts), &Difference::text);
      throw InputError(fmt::format("{}: options differ from those of the run to {}: {}{} ({})", out,
                                   plan.options.extend ? "extend" : "resume",
                                   fmt::join(texts, "; "),
                                   more                  ? "; --extend adds what is missing"
                                   : plan.options.extend ? "; expected all that it had"
                                                         : "",
                                   manifest_path(out).string()));
    }
    check_layers_alone(plan, then, now);
  }
  // Rows may have come from other traces of the same names.
  const std::vector<std::string> hashes = trace_hashes(now);
  const std::vector<std::string> old = trace_hashes(then);
  if (old.size() < hashes.size() || !std::equal(hashes.begin(), hashes.end(), old.begin())) {
    throw InputError(
        fmt::format("{}: the contents of the traces differ from those of the run to {} ({})", out,
                    plan.options.extend ? "extend" : "resume", manifest_path(out).string()));
  }
  return same ? "" : then.run_id;
}

}  // namespace kvbench
