#include "report/manifest.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "report/csv.hpp"
#include "report/schema.hpp"
#include "report/sha256.hpp"

namespace kvbench {
namespace {

using nlohmann::json;

constexpr std::string_view format_name = "kvbench-manifest";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
      return begin == std::string::npos ? "unknown" : line.substr(begin);
    }
  }
  return "unknown";
}

template <class T>
json nullable(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

std::optional<std::string> optional_text(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
}

json plan_to_json(const PlanInfo& plan) {
  json ranges = json::array();
  for (const Range& r : plan.row_ranges) {
    ranges.push_back({r.begin, r.end});
  }
  return {{"hash", plan.hash}, {"rows", plan.rows}, {"row_ranges", ranges}};
}

PlanInfo plan_from_json(const json& j) {
  PlanInfo plan{j.at("hash").get<std::string>(), j.at("rows").get<Index>(), {}};
  for (const json& r : j.at("row_ranges")) {
    plan.row_ranges.push_back({r.at(0).get<Index>(), r.at(1).get<Index>()});
  }
  return plan;
}

Manifest from_json(const json& j) {
  Manifest m;
  m.schema = j.at("schema").get<std::string>();
  const json& tool = j.at("tool");
  m.build = {tool.at("version").get<std::string>(), tool.at("git_commit").get<std::string>(),
             tool.at("git_dirty").get<bool>(),      tool.at("compiler").get<std::string>(),
             tool.at("flags").get<std::string>(),   tool.at("build_type").get<std::string>()};
  m.command_line = j.at("command_line").get<std::string>();
  m.configuration = j.at("configuration");
  for (const json& t : j.at("traces")) {
    m.traces.push_back({t.at("path").get<std::string>(), t.at("sha256").get<std::string>(),
                        t.at("bytes").get<std::uint64_t>()});
  }
  m.host = j.at("host").get<std::string>();
  m.cpu = j.at("cpu").get<std::string>();
  m.logical_cpus = j.at("logical_cpus").get<Index>();
  m.threads = j.at("threads").get<Index>();
  m.gpu = optional_text(j.at("gpu"));
  m.driver = optional_text(j.at("driver"));
  m.start = j.at("start").get<std::string>();
  m.end = optional_text(j.at("end"));
  m.rows = j.at("rows").get<Index>();
  m.rows_resumed = j.at("rows_resumed").get<Index>();
  m.failures = j.at("failures").get<Index>();
  m.wall_s = j.at("wall_s").get<double>();
  if (const json& shard = j.at("shard"); !shard.is_null()) {
    m.shard = Shard{shard.at("index").get<Index>(), shard.at("count").get<Index>()};
  }
  if (const json& plan = j.at("plan"); !plan.is_null()) {
    m.plan = plan_from_json(plan);
  }
  m.math_check = j.value("gpu_math_check", nlohmann::json());
  m.inputs = j.at("inputs");
  return m;
}

}  // namespace

std::filesystem::path manifest_path(const std::filesystem::path& csv) {
  std::filesystem::path path = csv;
  path += ".json";
  return path;
}

Manifest begin_manifest(std::string command_line, json configuration) {
  Manifest m;
  m.schema = schema_version;
  m.build = build_info();
  m.command_line = std::move(command_line);
  m.configuration = std::move(configuration);
  m.host = host_name();
  m.cpu = cpu_model();
  m.logical_cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
  m.start = utc_now();
  return m;
}

void add_trace(Manifest& manifest, const std::filesystem::path& trace) {
  std::string hash = sha256_file(trace);
  manifest.traces.push_back({trace.string(), std::move(hash), std::filesystem::file_size(trace)});
}

void end_manifest(Manifest& manifest, Index rows, Index failures, double wall_s) {
  manifest.end = utc_now();
  manifest.rows = rows;
  manifest.failures = failures;
  manifest.wall_s = wall_s;
}

json manifest_to_json(const Manifest& m) {
  json traces = json::array();
  for (const TraceFile& t : m.traces) {
    traces.push_back({{"path", t.path}, {"sha256", t.sha256}, {"bytes", t.bytes}});
  }
  json j;
  j["format"] = format_name;
  j["schema"] = m.schema;
  j["tool"] = {{"version", m.build.version}, {"git_commit", m.build.commit},
               {"git_dirty", m.build.dirty}, {"compiler", m.build.compiler},
               {"flags", m.build.flags},     {"build_type", m.build.build_type}};
  j["command_line"] = m.command_line;
  j["configuration"] = m.configuration;
  j["traces"] = std::move(traces);
  j["host"] = m.host;
  j["cpu"] = m.cpu;
  j["logical_cpus"] = m.logical_cpus;
  j["threads"] = m.threads;
  j["gpu"] = nullable(m.gpu);
  j["driver"] = nullable(m.driver);
  j["start"] = m.start;
  j["end"] = nullable(m.end);
  j["rows"] = m.rows;
  j["rows_resumed"] = m.rows_resumed;
  j["failures"] = m.failures;
  j["wall_s"] = m.wall_s;
  j["shard"] = m.shard ? json{{"index", m.shard->index}, {"count", m.shard->count}} : json(nullptr);
  j["plan"] = m.plan ? plan_to_json(*m.plan) : json(nullptr);
  j["gpu_math_check"] = m.math_check;
  j["inputs"] = m.inputs;
  return j;
}

void write_manifest(const std::filesystem::path& csv, const Manifest& manifest) {
  // A path that is not UTF-8 must not lose the run's manifest: its odd bytes are replaced.
  write_file_atomically(
      manifest_path(csv),
      manifest_to_json(manifest).dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

Manifest read_manifest(const std::filesystem::path& csv) {
  const std::filesystem::path path = manifest_path(csv);
  const std::string text = read_text_file(path);
  try {
    const json j = json::parse(text);
    if (j.at("format") != format_name) {
      throw InputError(fmt::format("{}: not a {} (format {})", path.string(), format_name,
                                   j.at("format").dump()));
    }
    return from_json(j);
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: not a readable manifest: {}", path.string(), error.what()));
  }
}

std::string shell_line(const std::vector<std::string>& arguments) {
  constexpr std::string_view safe =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  std::string line;
  for (const std::string& argument : arguments) {
    line += line.empty() ? "" : " ";
    if (!argument.empty() && argument.find_first_not_of(safe) == std::string::npos) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char c : argument) {
      line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    line += '\'';
  }
  return line;
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

}  // namespace kvbench
