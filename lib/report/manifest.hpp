// PATH.json, the manifest of PATH: where a result file comes from. Written with the tables of a
// run; while it goes on, its log has the manifest, with `end` null.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "core/types.hpp"
#include "report/build_info.hpp"

namespace kvbench {

struct TraceFile {
  std::string path;    ///< as on the command line
  std::string sha256;  ///< 64 hexadecimal digits
  std::uint64_t bytes = 0;
  std::string model = {};  ///< as the trace names it; "": the manifest does not say
  std::string dtype = {};  ///< element type of the model's cache; "": the manifest does not say
  /// Whether it was written to during the run: its SHA-256 differs at the end.
  bool changed = false;
};

/// Part `index` of `count` of a plan; 1 <= index <= count.
struct Shard {
  Index index = 1;
  Index count = 1;
};

/// A plan numbers the rows of the undivided file from 0.
struct PlanInfo {
  std::string hash;               ///< equal for all shards of one plan, whatever the shard
  Index rows = 0;                 ///< rows of the undivided file
  std::vector<Range> row_ranges;  ///< rows of the complete file, in its order
  /// Budgets of the middle and their shares of the whole cache's bytes.
  std::vector<std::pair<double, double>> budgets_of_cache = {};
};

/// Members have the names of the file's keys.
struct Manifest {
  std::string schema;  ///< schema_version
  BuildInfo tool;
  std::string command_line;      ///< one line, quoted for a POSIX shell
  nlohmann::json configuration;  ///< every option as resolved
  std::vector<TraceFile> traces;
  std::string host;
  std::string cpu;                    ///< model
  Index logical_cpus = 0;             ///< online
  Index threads = 0;                  ///< used
  std::optional<std::string> gpu;     ///< model; empty on the CPU
  std::optional<std::string> driver;  ///< driver version; empty on the CPU
  std::string start;                  ///< ISO 8601, UTC
  std::optional<std::string> end;     ///< ISO 8601, UTC; empty while running
  Index rows = 0;                     ///< rows in the file
  Index rows_resumed = 0;             ///< of these, rows kept from an earlier run
  Index failures = 0;                 ///< rows with status failed
  double wall_s = 0.0;                ///< seconds from start to end
  std::string run_id;                 ///< as in the column
  /// SHA-256 of the tables by TableSpec::name. Empty while running and if rows are missing.
  std::optional<std::map<std::string, std::string>> sha256;
  std::optional<Shard> shard;  ///< empty for an undivided run
  std::optional<PlanInfo> plan;
  nlohmann::json inputs;  ///< of a merged file: one object per shard; null otherwise
};

/// PATH.json.
std::filesystem::path manifest_path(const std::filesystem::path& csv);

/// Manifests of any version and table.
FileKind manifest_kind();

/// A manifest with build, host, CPU and start filled in.
Manifest begin_manifest(std::string command_line, nlohmann::json configuration);

/// Throws InputError if a trace was written to during the run.
void check_traces_unchanged(const Manifest& manifest, const std::filesystem::path& table);

/// Fills end, rows, failures and wall_s (seconds).
void end_manifest(Manifest& manifest, Index rows, Index failures, double wall_s);

/// Indented; bytes of paths that are not UTF-8 are replaced.
std::string json_text(const nlohmann::json& json);

/// Reads manifest_path(csv). Throws InputError if it is absent, no JSON as of parse_json(), of
/// another format, or lacks a key.
Manifest read_manifest(const std::filesystem::path& csv);

/// The file's text, and the reverse. `source`: for errors, as above.
std::string manifest_text(const Manifest& manifest);
Manifest manifest_from_text(std::string_view text, const std::string& source);

nlohmann::json manifest_to_json(const Manifest& manifest);

/// The id of all runs of one plan on the same traces, for every shard: 12 hexadecimal digits.
/// `what`: the plan's hash, or another text that determines the rows.
std::string run_id(std::string_view what, const std::vector<std::string>& trace_sha256);

/// SHA-256 of the traces, in order.
std::vector<std::string> trace_hashes(const Manifest& manifest);

/// The arguments as one line that a POSIX shell splits into the same arguments again.
std::string shell_line(const std::vector<std::string>& arguments);

/// Now, as `2025-01-31T12:34:56Z`.
std::string utc_now();

}  // namespace kvbench
