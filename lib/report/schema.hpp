// The result table: one row per (trace, prompt, layer, query head, algorithm, parameters, seed).
// The struct, the column list, docs/schema.md and the CSV header say the same thing in the same
// order; tests/test_schema.cpp compares all four.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/types.hpp"

namespace kvbench {

/// MAJOR.MINOR. Appending a column raises MINOR; any other change raises MAJOR.
inline constexpr std::string_view schema_version = "1.1";

/// One row, fields in column order. Byte counts describe the whole cache (sinks, middle, recent) of
/// the KV head that serves the row. Real-valued measurements start as NaN, so that one that nobody
/// set shows as `nan` and never as a plausible 0.
struct Row {
  static constexpr double unset = std::numeric_limits<double>::quiet_NaN();

  std::string schema{schema_version};
  std::string trace;                       ///< the trace's file name without folders
  std::string prompt;                      ///< prompt id inside the trace
  Index layer = 0;                         ///< layer's index in the model
  Index q_head = 0;                        ///< query head, 0-based
  Index kv_head = 0;                       ///< KV head that serves it
  std::string algorithm;                   ///< registry name; `A+B` for a composition
  std::string params;                      ///< canonical `key=value;...`, keys sorted
  std::string protocol;                    ///< prefill | stream
  Index sink = 0;                          ///< tokens
  Index recent = 0;                        ///< tokens
  std::string scores;                      ///< past | all | none
  std::string device;                      ///< cpu | cuda:i
  std::uint64_t seed = 0;                  ///< 0 for deterministic methods
  Index n_tokens = 0;                      ///< tokens of the prompt
  Index n_queries = 0;                     ///< queries evaluated
  std::optional<double> budget_requested;  ///< fraction of the middle's bytes; empty: native params
  Index tokens_kept = 0;                   ///< exact (k,v) pairs held
  Index bytes = 0;                         ///< payload + aux
  Index full_bytes = 0;                    ///< uncompressed cache
  double ratio = unset;                    ///< bytes / full_bytes
  double middle_ratio = unset;             ///< the same without sinks and recent
  Index aux_bytes = 0;                     ///< part of `bytes` that is not keys and values
  Index peak_bytes = 0;                    ///< maximum of `bytes` over a stream
  Index transient_bytes = 0;               ///< extra bytes while attending
  double rel_error = unset;                ///< |Z-A|_F / |A|_F
  double rel_error_mean = unset;           ///< per query |z-a|/|a|: mean
  double rel_error_p50 = unset;            ///< ... median
  double rel_error_p95 = unset;            ///< ... 95th percentile
  double rel_error_max = unset;            ///< ... maximum
  double eps_fro = unset;                  ///< max_j |z_j-a_j| / (|p_j|_2 |V|_F)
  double eps_op = unset;                   ///< the same with the operator norm of V
  double log_z_error = unset;              ///< mean |log D-estimate - log true partition|, nats
  double cosine = unset;                   ///< mean cosine of z_j and a_j
  double mass_kept = unset;                ///< true attention mass on tokens held exactly
  Index amnesia_count = 0;                 ///< tokens lost with p_ji > 0.005 for some query
  double amnesia_mass = unset;             ///< their attention, mean over queries
  double compress_ms = unset;              ///< milliseconds to compress the KV head
  double attend_us_per_query = unset;      ///< microseconds per query of one query head
  std::string status;  ///< ok | degenerate[: why] | infeasible: why | failed: why
  std::string diag;    ///< the method's own `key=value;...`
  std::optional<Index>
      scoring_queries;  ///< queries that a method scored with; empty: it looks at none
};

/// What is known about one column. All views point to static storage.
struct Column {
  std::string_view name;
  std::string_view unit;                      ///< "" for names and text
  std::string_view doc;                       ///< one line
  bool key = false;                           ///< part of the row's identity
  bool timing = false;                        ///< differs between runs of the same plan
  bool measured = false;                      ///< empty when the status is infeasible or failed
  std::string (*text)(const Row&) = nullptr;  ///< the unquoted CSV field
};

/// All columns, in file order.
std::span<const Column> columns();

/// Column names, in file order: the header of a result file.
const std::vector<std::string>& schema_header();

/// Names of the columns that identify a row, in file order.
std::vector<std::string_view> key_columns();

/// Position of a column. Throws InputError for a name that the schema lacks.
std::size_t column_index(std::string_view name);

/// The row's fields in column order, unquoted. Measured columns of an infeasible or failed row come
/// out empty: nothing was measured.
std::vector<std::string> to_fields(const Row& row);

/// Identity of a row: its key columns joined with their lengths, so that no two identities
/// collide. `fields`: all columns in file order; throws InputError on another count.
std::string row_key(std::span<const std::string> fields);
std::string row_key(const Row& row);

/// Shortest text that reads back as the same double; `inf`, `-inf`, `nan`. Never locale-dependent.
std::string number_text(double value);

/// First word of a status: "ok", "degenerate", "infeasible" or "failed" (or what stands there).
std::string_view status_kind(std::string_view status);

/// Parses a double as written by number_text. False when `text` is anything else.
bool parse_number(std::string_view text, double& value);

/// Splits canonical `key=value;key=value` (params, diag). A part without `=` gets an empty value.
std::vector<std::pair<std::string, std::string>> split_params(std::string_view params);

}  // namespace kvbench
