#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "config.hpp"
#include "core/error.hpp"
#include "core/output_guard.hpp"
#include "decimal.hpp"
#include "report/csv.hpp"
#include "trace/file_kinds.hpp"
#include "trace/schema.hpp"
#include "trace/synth.hpp"

namespace kvbench {
namespace {

struct SynthCommand {
  SynthOptions synth;
  std::string output;
  std::string dtype = "float16";
  std::string config;
};

template <class T>
CLI::Option* add_value(CLI::App* sub, const char* flag, T& value, const char* help) {
  CLI::Option* option = sub->add_option(flag, value, help)->capture_default_str();
  if constexpr (std::is_integral_v<T>) {
    option->check(decimal<T>());
  } else if constexpr (std::is_floating_point_v<T>) {
    option->check(real());
  }
  return option;
}

void add_shape_options(CLI::App* sub, SynthCommand& o) {
  SynthOptions& s = o.synth;
  const char* group = "Shape";
  const auto option = [&](const char* flag, auto& value, const char* help) {
    add_value(sub, flag, value, help)->group(group);
  };
  option("--prompts", s.prompts, "Prompts, named p0, p1, ...");
  option("--layers", s.layers, "Layers per prompt");
  option("--q-heads", s.q_heads, "Query heads, a multiple of --kv-heads");
  option("--kv-heads", s.kv_heads, "KV heads");
  option("--n,--tokens", s.n, "Tokens");
  option("--nq", s.nq, "Queries kept, the last ones; 0 keeps all");
  option("--d", s.d, "Width of queries and keys, 16 to 1024");
  option("--dv", s.dv, "Width of values");
  option("--dtype", o.dtype, "float16, bfloat16 or float32");
  sub->add_option("--scale", s.scale, "s in exp(s<k,q>) [default: 1/sqrt(d)]")
      ->check(real())
      ->group(group);
  option("--gzip", s.gzip_level, "Compression 1 to 9; 0 stores values as they are");
  option("--created", s.created, "Date to record; free text");
}

void add_structure_options(CLI::App* sub, SynthOptions& s) {
  const char* group = "Planted structure (strengths in nats; 0 is off)";
  const auto option = [&](const char* flag, auto& value, const char* help) {
    add_value(sub, flag, value, help)->group(group);
  };
  option("--key-norm", s.key_norm, "Norm of cluster centres");
  option("--key-offset", s.key_offset, "Norm of one vector added to all keys");
  option("--clusters", s.clusters, "Clusters of keys");
  option("--cluster-radius", s.cluster_radius, "Spread of a cluster over the key norm");
  option("--run-length", s.run_length, "Mean tokens in a row in one cluster");
  option("--query-noise", s.query_noise, "Deviation of unplanned logits");
  option("--topic-strength", s.topic_strength, "Pull of a query's own cluster");
  option("--recency", s.recency, "Pull of recent keys");
  option("--recency-window", s.recency_window, "How far recency reaches, in tokens");
  option("--sinks", s.sinks, "Leading tokens that attract attention");
  option("--sink-strength", s.sink_strength, "Pull of a sink on every query");
  option("--sink-norm", s.sink_norm, "Norm of sink keys over the key norm");
  option("--sink-value", s.sink_value, "Norm of sink values over other values' norm");
  option("--heavy-fraction", s.heavy_fraction, "Share of tokens that are heavy hitters");
  option("--heavy-strength", s.heavy_strength, "Pull of a heavy hitter on every query");
  option("--needle-strength", s.needle_strength, "Pull of the needle on the last queries");
  option("--needle-position", s.needle_position, "Where the needle is, 0 to 1");
  option("--needle-queries", s.needle_queries, "Last queries that look for the needle");
  option("--value-norm", s.value_norm, "Median norm of values");
  option("--value-decades", s.value_decades, "Powers of ten that value norms spread over");
}

void run(CLI::App& sub, SynthCommand& o) {
  if (!o.config.empty()) {
    apply_config(sub, o.config);
  }
  const auto dtype = parse_dtype(o.dtype);
  if (!dtype) {
    throw InputError(
        fmt::format("synth: --dtype must be float16, bfloat16 or float32, got {}", o.dtype));
  }
  o.synth.dtype = *dtype;
  check_outputs({o.config}, {{o.output, synthetic_trace_kind()}});
  check_folder("-o", o.output);
  const FileLock lock(o.output);
  synth(o.synth, o.output);
}

}  // namespace

void add_synth(CLI::App& app) {
  const auto o = std::make_shared<SynthCommand>();
  CLI::App* sub = app.add_subcommand("synth", "Write a trace with planted structure, seeded");
  sub->add_option("-o,--output", o->output, "Trace to write")->required()->type_name("T.h5");
  add_value(sub, "--seed", o->synth.seed, "Same options and seed give the same file");
  sub->add_option("--config", o->config, "TOML file with options; the command line wins")
      ->type_name("FILE.toml");
  add_shape_options(sub, *o);
  add_structure_options(sub, o->synth);
  sub->callback([o, sub] { run(*sub, *o); });
}

}  // namespace kvbench
