// PATH.json beside PATH: where a result file comes from. Written when a run starts (`end` null, so
// a killed run is recognisable) and replaced atomically when it ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/files.hpp"
#include "core/output_guard.hpp"
#include "core/types.hpp"
#include "report/build_info.hpp"

namespace kvbench {

struct TraceFile {
  std::string path;    ///< as given
  std::string sha256;  ///< 64 hexadecimal digits
  std::uint64_t bytes = 0;
  std::string model = {};  ///< as the trace names it; "": the manifest does not say
  std::string dtype = {};  ///< element type of the model's cache; "": the manifest does not say
  /// Whether somebody wrote to it during the run: its SHA-256 at the end is another, and rows may
  /// be of neither.
  bool changed = false;
};

/// Part `index` of `count` of a plan; 1 <= index <= count.
struct Shard {
  Index index = 1;
  Index count = 1;
};

/// The plan gives every row of the undivided file an index in [0, rows), in file order.
struct PlanInfo {
  std::string hash;               ///< equal for all shards of one plan, whatever the shard
  Index rows = 0;                 ///< rows of the undivided file
  std::vector<Range> row_ranges;  ///< indexes of this file's rows, in the file's order, when
                                  ///< complete; {[0, rows)} for an undivided run
};

/// Names and order of the members are those of the file.
struct Manifest {
  std::string schema;  ///< schema_version
  BuildInfo tool;
  std::string command_line;      ///< one line, quoted for a POSIX shell
  nlohmann::json configuration;  ///< every option as resolved
  std::vector<TraceFile> traces;
  std::string host;
  std::string cpu;                    ///< model
  Index logical_cpus = 0;             ///< that the system has online
  Index threads = 0;                  ///< that the run used
  std::optional<std::string> gpu;     ///< model; empty on the CPU
  std::optional<std::string> driver;  ///< driver version; empty on the CPU
  std::string start;                  ///< ISO 8601, UTC
  std::optional<std::string> end;     ///< ISO 8601, UTC; empty while running
  Index rows = 0;                     ///< rows in the file
  Index rows_resumed = 0;             ///< of these, rows that an earlier run had left
  Index failures = 0;                 ///< rows with status failed
  double wall_s = 0.0;                ///< seconds from start to end
  std::string run_id;                 ///< what the tables' column says; "" before schema 1.2
  /// SHA-256 of the finished files: `table` is OUT.csv, side tables have their names (`steps`).
  /// Empty while running, after a kill, and where rows are missing.
  std::optional<std::map<std::string, std::string>> sha256;
  std::optional<Shard> shard;  ///< empty for an undivided run
  std::optional<PlanInfo> plan;
  nlohmann::json inputs;  ///< of a merged file: one object per shard; null otherwise
};

/// PATH.json for PATH.
std::filesystem::path manifest_path(const std::filesystem::path& csv);

/// Manifests, of any version and of any table.
FileKind manifest_kind();

/// A manifest with build, host, CPU and start filled in.
Manifest begin_manifest(std::string command_line, nlohmann::json configuration);

/// Throws InputError where a trace was written to while the rows of `csv` were made.
void check_traces_unchanged(const Manifest& manifest, const std::filesystem::path& csv);

/// Fills end, rows, failures and wall_s (seconds, from the caller's monotonic clock).
void end_manifest(Manifest& manifest, Index rows, Index failures, double wall_s);

/// Writes indented JSON atomically. Throws IoError.
void write_json(const std::filesystem::path& path, const nlohmann::json& json);

/// Writes manifest_path(csv). Throws IoError.
void write_manifest(const std::filesystem::path& csv, const Manifest& manifest);

/// The same, still to be published. Throws IoError.
StagedFile stage_manifest(const std::filesystem::path& csv, const Manifest& manifest);

/// Reads manifest_path(csv). Throws InputError (file, key, what was expected) when it is absent,
/// no JSON, of another format, or lacks a key.
Manifest read_manifest(const std::filesystem::path& csv);

nlohmann::json manifest_to_json(const Manifest& manifest);

/// SHA-256 of the traces, in order.
std::vector<std::string> trace_hashes(const Manifest& manifest);

/// The arguments as one line that a POSIX shell splits into the same arguments again.
std::string shell_line(const std::vector<std::string>& arguments);

/// Now, as `2025-01-31T12:34:56Z`.
std::string utc_now();

}  // namespace kvbench
