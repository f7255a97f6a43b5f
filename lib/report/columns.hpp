// The columns of OUT.csv, in file order. Row, the header, to_fields(), fill() and the table in
// docs/schema.md (scripts/update_schema_docs.sh) are made from this list. A new column is the last
// line and raises the MINOR of schema_version. Side tables have run_id and row_crc too.
#pragma once

#include <string_view>

namespace kvbench {

/// MAJOR.MINOR. Appending a column raises MINOR; any other change raises MAJOR.
inline constexpr std::string_view schema_version = "1.8";

}  // namespace kvbench

// COLUMN(type, name, unit, kind, missing, doc)
//   type     of Row's field; field_text() writes it
//   unit     "" for names and text
//   kind     key: part of the row's identity; measured: empty when the status is infeasible or
//            failed; timing: measured, and differs between runs of the same plan; else plain
//   missing  when the field is empty, unless the kind says it; "" for a key or plain column that
//            never is
//   doc      one line of Markdown
// clang-format off
#define KVBENCH_COLUMNS(COLUMN) \
  COLUMN(std::string, schema, "", plain, "", "version of this table, MAJOR.MINOR") \
  COLUMN(std::string, trace, "", key, "", "trace file's name without folders") \
  COLUMN(std::string, prompt, "", key, "", "prompt id inside the trace") \
  COLUMN(Index, layer, "", key, "", "layer's index in the model") \
  COLUMN(Index, q_head, "", key, "", "query head, 0-based") \
  COLUMN(Index, kv_head, "", plain, "", "KV head that serves the query head") \
  COLUMN(std::string, algorithm, "", key, "", "name as `kvbench list` prints it; `A+B` for a composition, `A@Q` for what A keeps stored by Q") \
  COLUMN(std::string, params, "", key, "no parameters", "canonical `key=value;key=value`, keys sorted, defaults written out") \
  COLUMN(std::string, protocol, "", key, "", "`prefill`, `stream` or `retrieval`") \
  COLUMN(Index, sink, "tokens", key, "", "first tokens that stay uncompressed") \
  COLUMN(Index, recent, "tokens", key, "", "last tokens that stay uncompressed") \
  COLUMN(std::string, scores, "", key, "", "queries that a method may score with: `past` or `all`; `none` where it looks at none") \
  COLUMN(std::string, device, "", key, "", "`cpu` or `cuda:i`") \
  COLUMN(std::uint64_t, seed, "", key, "", "random seed; 0 for deterministic methods") \
  COLUMN(Index, n_tokens, "tokens", plain, "", "length of the prompt") \
  COLUMN(Index, n_queries, "queries", key, "", "queries evaluated") \
  COLUMN(std::optional<double>, budget_requested, "fraction", key, "native parameters", "share of the middle's full bytes (stream: of the whole stream's; --total-budget: of all tokens') that was asked for, to hold or (retrieval) to read") \
  COLUMN(Index, tokens_kept, "tokens", measured, "", "exact (k,v) pairs held, quantized tokens too; sinks and recent included") \
  COLUMN(Index, bytes, "bytes", measured, "", "payload and auxiliary data that the KV head's cache holds") \
  COLUMN(Index, full_bytes, "bytes", plain, "", "all tokens of the KV head at the trace's element type") \
  COLUMN(double, ratio, "fraction", measured, "", "bytes / full_bytes") \
  COLUMN(double, middle_ratio, "fraction", measured, "", "the same for the middle alone, without sinks and recent") \
  COLUMN(Index, aux_bytes, "bytes", measured, "", "the part of bytes that is not keys and values") \
  COLUMN(Index, peak_bytes, "bytes", measured, "", "largest bytes over a stream's evaluated steps; otherwise equals bytes") \
  COLUMN(Index, transient_bytes, "bytes", measured, "", "extra bytes while attending (stream: the maximum over steps)") \
  COLUMN(double, rel_error, "fraction", measured, "", "|Z-A|_F / |A|_F over all evaluated queries") \
  COLUMN(double, rel_error_mean, "fraction", measured, "", "mean over queries of |z-a| / |a|") \
  COLUMN(double, rel_error_p50, "fraction", measured, "", "median over queries of |z-a| / |a|") \
  COLUMN(double, rel_error_p95, "fraction", measured, "", "95th percentile over queries of |z-a| / |a|") \
  COLUMN(double, rel_error_max, "fraction", measured, "", "maximum over queries of |z-a| / |a|") \
  COLUMN(double, eps_fro, "fraction", measured, "", "max over queries of |z_j-a_j| / (|p_j|_2 |V_j|_F)") \
  COLUMN(double, eps_op, "fraction", measured, "", "the same with the operator norm of V_j") \
  COLUMN(double, log_z_error, "nats", measured, "", "mean over queries of |log denominator estimate - log true partition|") \
  COLUMN(double, cosine, "", measured, "", "mean over queries of the cosine of z_j and a_j") \
  COLUMN(double, mass_kept, "fraction", measured, "", "true attention mass on tokens that are held exactly (retrieval: that the query reads), mean over queries") \
  COLUMN(Index, amnesia_count, "tokens", measured, "", "tokens not held exactly (retrieval: not read) that had attention above 0.005 from some query") \
  COLUMN(double, amnesia_mass, "fraction", measured, "", "attention on those tokens, mean over queries") \
  COLUMN(double, compress_ms, "ms", timing, "", "wall time to compress the KV head (stream: of all appends; retrieval: to build the index)") \
  COLUMN(double, attend_us_per_query, "us", timing, "", "wall time to attend, per query of one query head (retrieval: search included)") \
  COLUMN(std::string, status, "", plain, "", "`ok`, `degenerate`, `infeasible` or `failed`, then `: reason`") \
  COLUMN(std::string, diag, "", plain, "no diagnostics", "the method's own diagnostics, `key=value;key=value`") \
  COLUMN(std::optional<Index>, scoring_queries, "queries", plain, "the method looks at no query", "positions whose queries the method scored tokens with (stream: all; `oracle`, `oracle-matching`: the evaluated ones)") \
  COLUMN(Index, repeats, "", plain, "", "timed runs of the job (`--repeat`); above 1 the times are medians over them, after one run to warm up") \
  COLUMN(std::optional<double>, compress_ms_iqr, "ms", timing, "not repeated, or not measured", "interquartile range of compress_ms over these runs") \
  COLUMN(std::optional<double>, attend_us_per_query_iqr, "us", timing, "not repeated, or not measured", "interquartile range of attend_us_per_query over these runs") \
  COLUMN(std::string, run_id, "", plain, "", "the run that wrote the row: equal for all tables, shards and resumed parts of one plan on the same traces; `run_id` in the manifest") \
  COLUMN(std::string, row_crc, "", plain, "always", "earlier than schema 1.7 a checksum of the row") \
  COLUMN(std::string, model, "", plain, "the trace does not say", "model that the trace is of, as the trace names it (model id and revision)") \
  COLUMN(std::string, dtype, "", plain, "", "element type of the trace's cache: `float16`, `bfloat16` or `float32`") \
  COLUMN(std::string, precision, "", plain, "", "what products and exponentials of attention were computed in (`--precision`)") \
  COLUMN(std::optional<double>, read_bytes, "bytes", measured, "not measured, or another protocol", "retrieval: bytes of the middle and of the index that a query reads, mean over queries") \
  COLUMN(std::optional<double>, read_ratio, "fraction", measured, "not measured, or another protocol", "retrieval: read_bytes / the middle's full bytes") \
  COLUMN(std::optional<Index>, index_bytes, "bytes", measured, "not measured, or another protocol", "retrieval: bytes held beside the whole cache") \
  COLUMN(std::optional<double>, recall, "fraction", measured, "not measured, or another protocol", "retrieval: share of the query's B heaviest tokens of the middle that it read, B as many as it asked for (0 where it asked for none), mean over queries") \
  /* the next column */
// clang-format on
