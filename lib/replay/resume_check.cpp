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
  bool more = false;  // the new value contains the old one
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
  out.push_back(
      {fmt::format("{}: got {}, expected {}", option, text_of(now), text_of(then)), more});
}

// Names one algorithm that differs: the lists are long.
void compare_algorithms(const json& then, const json& now, std::vector<Difference>& out) {
  const auto lacking = [](const json& all, const json& from) {
    return std::ranges::find_if(
        all, [&](const json& one) { return std::ranges::find(from, one) == from.end(); });
  };
  const auto lost = lacking(then, now);
  const auto added = lacking(now, then);
  if (lost != then.end()) {
    out.push_back({fmt::format("--algorithm: missing {}", text_of(*lost))});
  } else if (added != now.end()) {
    out.push_back(
        {fmt::format("--algorithm: got {}, which the table does not have", text_of(*added)), true});
  }
}

std::vector<std::uint64_t> seeds_of(const json& value) {
  return value.is_string()
             ? parse_seeds(value.get<std::string>())
             : value.get<std::vector<std::uint64_t>>();  // written by an earlier version
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
    out.push_back({fmt::format("traces: got {}, expected {}", fmt::join(names_of(now), ","),
                               fmt::join(names_of(then), ","))});
  }
  compare_algorithms(had.at("algorithms"), have.at("algorithms"), out);
  compare_lists("--budget", had.at("budgets"), have.at("budgets"), false, out);
  const std::vector<std::uint64_t> seeds_then = seeds_of(had.at("seeds"));
  const std::vector<std::uint64_t> seeds_now = seeds_of(have.at("seeds"));
  if (seeds_then != seeds_now) {
    out.push_back(
        {fmt::format("--seeds: got {}, expected {}", seeds_text(seeds_now), seeds_text(seeds_then)),
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
      out.push_back({fmt::format("--{}: got {}, expected {}", option, text_of(have.at(key)),
                                 text_of(had.at(key)))});
    }
  }
  if (shard_text(then.shard) != shard_text(now.shard)) {
    out.push_back({fmt::format("--shard: got {}, expected {}", shard_text(now.shard),
                               shard_text(then.shard))});
  }
  if (out.empty()) {
    out.push_back({"traces or caches: their metadata differ"});
  }
  return out;
}

// Throws InputError if layers are added and heads of several layers share a budget: rows would
// change.
void check_layers_alone(const PlanSpec& plan, const Manifest& then, const Manifest& now) {
  const json& had = then.configuration;
  if (had.at("layers") == now.configuration.at("layers")) {
    return;
  }
  for (const Variant& v : plan.variants) {
    const json one{{"name", v.label()}, {"params", v.label_params()}};
    if (v.scope() == Scope::layers &&
        std::ranges::find(had.at("algorithms"), one) != had.at("algorithms").end()) {
      throw InputError(fmt::format(
          "{}: --extend: --layers: {} shares a budget among all replayed layers, so "
          "more layers would change its rows; expected the layers of the run to extend, "
          "or another file",
          plan.options.out, text_of(one)));
    }
  }
}

// differences(); throws InputError if the manifest lacks a key.
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
  // A run that was killed before it wrote its manifest left no rows.
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
                                   more                  ? "; --extend adds missing rows"
                                   : plan.options.extend ? "; --extend only adds to a plan"
                                                         : "",
                                   manifest_path(out).string()));
    }
    check_layers_alone(plan, then, now);
  }
  // Traces of the same names may have other contents.
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
