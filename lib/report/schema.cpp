#include "report/schema.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <type_traits>
#include <utility>

#include "core/error.hpp"

namespace kvbench {
namespace {

template <class T>
std::string field_text(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, double>) {
    return number_text(value);
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    return value ? number_text(*value) : std::string();
  } else if constexpr (std::is_same_v<T, std::optional<Index>>) {
    return value ? fmt::format("{}", *value) : std::string();
  } else {
    return fmt::format("{}", value);
  }
}

template <auto Member>
std::string text_of(const Row& row) {
  return field_text(row.*Member);
}

enum class Kind { plain, key, measured, timing };

template <auto Member>
constexpr Column column(std::string_view name, std::string_view unit, Kind kind,
                        std::string_view doc) {
  return {name,
          unit,
          doc,
          kind == Kind::key,
          kind == Kind::timing,
          kind == Kind::measured || kind == Kind::timing,
          &text_of<Member>};
}

using enum Kind;

// clang-format off
constexpr std::array table{
    column<&Row::schema>("schema", "", plain, "version of this table, MAJOR.MINOR"),
    column<&Row::trace>("trace", "", key, "trace file's name without folders"),
    column<&Row::prompt>("prompt", "", key, "prompt id inside the trace"),
    column<&Row::layer>("layer", "", key, "layer's index in the model"),
    column<&Row::q_head>("q_head", "", key, "query head, 0-based"),
    column<&Row::kv_head>("kv_head", "", plain, "KV head that serves the query head"),
    column<&Row::algorithm>("algorithm", "", key, "name as `kvbench list` prints it; `A+B` for a composition"),
    column<&Row::params>("params", "", key, "canonical `key=value;key=value`, keys sorted, defaults written out"),
    column<&Row::protocol>("protocol", "", key, "`prefill` or `stream`"),
    column<&Row::sink>("sink", "tokens", key, "first tokens that stay uncompressed"),
    column<&Row::recent>("recent", "tokens", key, "last tokens that stay uncompressed"),
    column<&Row::scores>("scores", "", key, "queries that a method may score with: `past` or `all`; `none` where it looks at none"),
    column<&Row::device>("device", "", key, "`cpu` or `cuda:i`"),
    column<&Row::seed>("seed", "", key, "random seed; 0 for deterministic methods"),
    column<&Row::n_tokens>("n_tokens", "tokens", plain, "length of the prompt"),
    column<&Row::n_queries>("n_queries", "queries", key, "queries evaluated"),
    column<&Row::budget_requested>("budget_requested", "fraction", key, "share of the middle's full bytes (stream: of the whole stream's) that was asked for; empty with native parameters"),
    column<&Row::tokens_kept>("tokens_kept", "tokens", measured, "exact (k,v) pairs held, quantised tokens too; sinks and recent included"),
    column<&Row::bytes>("bytes", "bytes", measured, "payload and auxiliary data that the KV head's cache holds"),
    column<&Row::full_bytes>("full_bytes", "bytes", plain, "all tokens of the KV head at the trace's element type"),
    column<&Row::ratio>("ratio", "fraction", measured, "bytes / full_bytes"),
    column<&Row::middle_ratio>("middle_ratio", "fraction", measured, "the same for the middle alone, without sinks and recent"),
    column<&Row::aux_bytes>("aux_bytes", "bytes", measured, "the part of bytes that is not keys and values"),
    column<&Row::peak_bytes>("peak_bytes", "bytes", measured, "largest bytes over a stream's evaluated steps; equals bytes under prefill"),
    column<&Row::transient_bytes>("transient_bytes", "bytes", measured, "extra bytes while attending (stream: the most at any step)"),
    column<&Row::rel_error>("rel_error", "fraction", measured, "|Z-A|_F / |A|_F over all evaluated queries"),
    column<&Row::rel_error_mean>("rel_error_mean", "fraction", measured, "mean over queries of |z-a| / |a|"),
    column<&Row::rel_error_p50>("rel_error_p50", "fraction", measured, "median over queries of |z-a| / |a|"),
    column<&Row::rel_error_p95>("rel_error_p95", "fraction", measured, "95th percentile over queries of |z-a| / |a|"),
    column<&Row::rel_error_max>("rel_error_max", "fraction", measured, "maximum over queries of |z-a| / |a|"),
    column<&Row::eps_fro>("eps_fro", "fraction", measured, "max over queries of |z_j-a_j| / (|p_j|_2 |V_j|_F)"),
    column<&Row::eps_op>("eps_op", "fraction", measured, "the same with the operator norm of V_j"),
    column<&Row::log_z_error>("log_z_error", "nats", measured, "mean over queries of |log denominator estimate - log true partition|"),
    column<&Row::cosine>("cosine", "", measured, "mean over queries of the cosine of z_j and a_j"),
    column<&Row::mass_kept>("mass_kept", "fraction", measured, "true attention mass on tokens that are held exactly, mean over queries"),
    column<&Row::amnesia_count>("amnesia_count", "tokens", measured, "tokens not held exactly that had attention above 0.005 from some query"),
    column<&Row::amnesia_mass>("amnesia_mass", "fraction", measured, "attention on those tokens, mean over queries"),
    column<&Row::compress_ms>("compress_ms", "ms", timing, "wall time to compress the KV head (stream: of all appends)"),
    column<&Row::attend_us_per_query>("attend_us_per_query", "us", timing, "wall time to attend, per query of one query head"),
    column<&Row::status>("status", "", plain, "`ok`, `degenerate`, `infeasible` or `failed`, then `: reason`"),
    column<&Row::diag>("diag", "", plain, "the method's own diagnostics, `key=value;key=value`"),
    column<&Row::scoring_queries>("scoring_queries", "queries", plain, "positions whose queries the method scored tokens with (stream: all; `oracle`: the evaluated ones); empty where it looks at none"),
};
// clang-format on

}  // namespace

std::span<const Column> columns() {
  return table;
}

const std::vector<std::string>& schema_header() {
  static const std::vector<std::string> header = [] {
    std::vector<std::string> names;
    for (const Column& c : table) {
      names.emplace_back(c.name);
    }
    return names;
  }();
  return header;
}

std::vector<std::string_view> key_columns() {
  std::vector<std::string_view> names;
  for (const Column& c : table) {
    if (c.key) {
      names.push_back(c.name);
    }
  }
  return names;
}

std::size_t column_index(std::string_view name) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) {
      return i;
    }
  }
  throw InputError(fmt::format("schema {}: no column `{}`", schema_version, name));
}

std::vector<std::string> to_fields(const Row& row) {
  const std::string_view kind = status_kind(row.status);
  const bool blank = kind == "infeasible" || kind == "failed";
  std::vector<std::string> fields;
  fields.reserve(table.size());
  for (const Column& c : table) {
    fields.push_back(blank && c.measured ? std::string() : c.text(row));
  }
  return fields;
}

std::string row_key(std::span<const std::string> fields) {
  if (fields.size() != table.size()) {
    throw InputError(fmt::format("row key: got {} fields, expected {} (schema {})", fields.size(),
                                 table.size(), schema_version));
  }
  std::string key;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].key) {
      fmt::format_to(std::back_inserter(key), "{}:{},", fields[i].size(), fields[i]);
    }
  }
  return key;
}

std::string row_key(const Row& row) {
  return row_key(to_fields(row));
}

std::string number_text(double value) {
  // fmt writes -nan for a negative NaN; the sign of a NaN means nothing.
  return value != value ? "nan" : fmt::format("{}", value);
}

std::string_view status_kind(std::string_view status) {
  return status.substr(0, status.find(':'));
}

bool parse_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::pair<std::string, std::string>> split_params(std::string_view params) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!params.empty()) {
    const std::size_t end = params.find(';');
    const std::string_view part = params.substr(0, end);
    if (!part.empty()) {
      const std::size_t eq = part.find('=');
      out.emplace_back(part.substr(0, eq),
                       eq == std::string_view::npos ? std::string_view() : part.substr(eq + 1));
    }
    params = end == std::string_view::npos ? std::string_view() : params.substr(end + 1);
  }
  return out;
}

}  // namespace kvbench
