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
#include "core/files.hpp"
#include "core/parse_json.hpp"
#include "core/sha256.hpp"
#include "report/schema.hpp"
#include "report/table_reader.hpp"

template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& j, const std::optional<T>& value) {
    j = value ? json(*value) : json(nullptr);
  }
  static void from_json(const json& j, std::optional<T>& value) {
    value = j.is_null() ? std::nullopt : std::optional<T>(j.get<T>());
  }
};

namespace kvbench {

using nlohmann::json;

static void to_json(json& j, const Range& range) {
  j = {range.begin, range.end};
}

static void from_json(const json& j, Range& range) {
  range = {j.at(0).get<Index>(), j.at(1).get<Index>()};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BuildInfo, version, git_commit, git_dirty, compiler, flags,
                                   build_type)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TraceFile, path, sha256, bytes, model, dtype, changed)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Shard, index, count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PlanInfo, hash, rows, row_ranges, budgets_of_cache)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Manifest, schema, tool, command_line, configuration, traces,
                                   host, cpu, logical_cpus, threads, gpu, driver, start, end, rows,
                                   rows_resumed, failures, wall_s, run_id, sha256, shard, plan,
                                   inputs)

namespace {

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

}  // namespace

std::filesystem::path manifest_path(const std::filesystem::path& csv) {
  std::filesystem::path path = csv;
  path += ".json";
  return path;
}

FileKind manifest_kind() {
  const auto matches = [](const std::filesystem::path& path) {
    try {
      const json j = parse_json(read_text_file(path), path.string());
      return j.is_object() && j.contains("format") && j.at("format") == format_name;
    } catch (const Error&) {
      return false;
    }
  };
  const auto begins = [](std::string_view text) {
    constexpr std::string_view start = "{\n  \"";
    return start.starts_with(text.substr(0, start.size()));
  };
  return {"a manifest", matches, begins};
}

Manifest begin_manifest(std::string command_line, json configuration) {
  Manifest m;
  m.schema = schema_version;
  m.tool = build_info();
  m.command_line = std::move(command_line);
  m.configuration = std::move(configuration);
  m.host = host_name();
  m.cpu = cpu_model();
  m.logical_cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
  m.start = utc_now();
  return m;
}

void check_traces_unchanged(const Manifest& manifest, const std::filesystem::path& table) {
  for (const TraceFile& trace : manifest.traces) {
    if (trace.changed) {
      throw InputError(
          fmt::format("{}: the trace {} was written to during the run (as its manifest says), "
                      "expected a run on a trace that does not change",
                      table.string(), trace.path));
    }
  }
}

void end_manifest(Manifest& manifest, Index rows, Index failures, double wall_s) {
  manifest.end = utc_now();
  manifest.rows = rows;
  manifest.failures = failures;
  manifest.wall_s = wall_s;
}

std::string run_id(std::string_view what, const std::vector<std::string>& trace_sha256) {
  return sha256_text(fmt::format("{} {}", what, fmt::join(trace_sha256, " "))).substr(0, 12);
}

std::vector<std::string> trace_hashes(const Manifest& manifest) {
  std::vector<std::string> out;
  for (const TraceFile& trace : manifest.traces) {
    out.push_back(trace.sha256);
  }
  return out;
}

json manifest_to_json(const Manifest& manifest) {
  json j = manifest;
  j["format"] = format_name;
  return j;
}

std::string json_text(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string manifest_text(const Manifest& manifest) {
  return json_text(manifest_to_json(manifest));
}

Manifest manifest_from_text(std::string_view text, const std::string& source) {
  const json j = parse_json(text, source);
  try {
    if (j.at("format") != format_name) {
      throw InputError(
          fmt::format("{}: not a {} (format {})", source, format_name, j.at("format").dump()));
    }
    return j.get<Manifest>();
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: not a readable manifest: {}", source, error.what()));
  }
}

Manifest read_manifest(const std::filesystem::path& csv) {
  const std::filesystem::path path = manifest_path(csv);
  return manifest_from_text(read_text_file(path), path.string());
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
