#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commands.hpp"
#include "config.hpp"
#include "core/error.hpp"
#include "core/file_lock.hpp"
#include "core/output_guard.hpp"
#include "number_options.hpp"
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
CLI::Option* value_option(CLI::App* sub, const char* flag, T& value, const char* help) {
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
    value_option(sub, flag, value, help)->group(group);
  };
  option("--prompts", s.prompts, "Number of prompts, named p0, p1, ...");
  option("--layers", s.layers, "Layers per prompt");
  option("--q-heads", s.q_heads, "Query heads per layer, a multiple of --kv-heads");
  option("--kv-heads", s.kv_heads, "KV heads per layer");
  option("--n,--tokens", s.n, "Tokens per prompt");
  option("--nq", s.nq, "Number of last queries to store; 0 stores all");
  option("--d", s.d, "Width of queries and keys, 16 to 1024");
  option("--dv", s.dv, "Width of values");
  option("--dtype", o.dtype, "Element type: float16, bfloat16 or float32");
  sub->add_option("--scale", s.scale, "Scale s of the logits s<k,q> [default: 1/sqrt(d)]")
      ->check(real())
      ->group(group);
  option("--gzip", s.gzip_level, "gzip level, 1 to 9; 0 disables compression");
  option("--created", s.created, "Creation date to record, as free text");
}

void add_structure_options(CLI::App* sub, SynthOptions& s) {
  const char* group = "Planted structure (strengths: logits in nats, 0 disables)";
  const auto option = [&](const char* flag, auto& value, const char* help) {
    value_option(sub, flag, value, help)->group(group);
  };
  option("--key-norm", s.key_norm, "Norm of cluster centres");
  option("--key-offset", s.key_offset, "Norm of a vector added to every key");
  option("--clusters", s.clusters, "Number of key clusters");
  option("--cluster-radius", s.cluster_radius,
         "Distance of keys from their centre, relative to --key-norm");
  option("--run-length", s.run_length, "Mean number of consecutive tokens in one cluster");
  option("--query-noise", s.query_noise, "Standard deviation of random logits, in nats");
  option("--topic-strength", s.topic_strength, "Strength of keys in the query's own cluster");
  option("--recency", s.recency, "Strength of the query's own position");
  option("--recency-window", s.recency_window,
         "Standard deviation of the recency Gaussian, in tokens");
  option("--sinks", s.sinks, "Number of leading tokens that are attention sinks");
  option("--sink-strength", s.sink_strength, "Strength of a sink for every query");
  option("--sink-norm", s.sink_norm, "Norm of sink keys, relative to --key-norm");
  option("--sink-value", s.sink_value, "Norm of sink values, relative to other values");
  option("--heavy-fraction", s.heavy_fraction, "Fraction of tokens that are heavy hitters");
  option("--heavy-strength", s.heavy_strength, "Strength of a heavy hitter for every query");
  option("--needle-strength", s.needle_strength, "Strength of the needle for the last queries");
  option("--needle-position", s.needle_position,
         "Relative position of the needle, from 0 to below 1");
  option("--needle-queries", s.needle_queries, "Number of last queries that attend to the needle");
  option("--value-norm", s.value_norm, "Median norm of values");
  option("--value-decades", s.value_decades, "Spread of value norms, in powers of ten");
}

void run(CLI::App& sub, SynthCommand& o) {
  if (!o.config.empty()) {
    apply_config(sub, o.config);
  }
  const auto dtype = parse_dtype(o.dtype);
  if (!dtype) {
    throw InputError(
        fmt::format("--dtype: got '{}', expected float16, bfloat16 or float32", o.dtype));
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
  CLI::App* sub = app.add_subcommand("synth", "Write a synthetic trace with planted structure");
  sub->add_option("-o,--output", o->output, "Trace file to write")->required()->type_name("T.h5");
  value_option(sub, "--seed", o->synth.seed,
               "Random seed; equal options and seed give equal files");
  sub->add_option("--config", o->config,
                  "TOML file with any of these options. The command line takes precedence")
      ->type_name("FILE.toml");
  add_shape_options(sub, *o);
  add_structure_options(sub, o->synth);
  sub->callback([o, sub] { run(*sub, *o); });
}

}  // namespace kvbench
