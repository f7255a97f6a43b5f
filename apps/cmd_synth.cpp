#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>

#include "commands.hpp"
#include "config.hpp"
#include "core/file_lock.hpp"
#include "core/output_guard.hpp"
#include "number_options.hpp"
#include "parse_enum.hpp"
#include "report/csv.hpp"
#include "trace/file_kinds.hpp"
#include "trace/synth.hpp"

namespace kvbench {
namespace {

struct SynthCommand {
  SynthOptions synth;
  std::string output;
  std::string config;
};

template <class T>
CLI::Option* value_option(CLI::App& app, const std::string& flag, T& value, const char* help) {
  CLI::Option* option = app.add_option(flag, value, help);
  if constexpr (requires { value.has_value(); }) {
    return option->check(real());
  } else {
    option->capture_default_str();
    if constexpr (std::is_arithmetic_v<T>) {
      option->check(number<T>());
    }
    return option;
  }
}

std::string flag_of(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name == "n" ? "--n,--tokens" : name == "gzip-level" ? "--gzip" : "--" + name;
}

void add_options(CLI::App& app, SynthCommand& o) {
  const char* group = "Shape";
  const auto add = [&](const char* name, auto& value, SynthRange, const char* help) {
    value_option(app, flag_of(name), value, help)->group(group);
  };
  each_shape(o.synth, add);
  enum_option(app, "--dtype", o.synth.dtype, {DType::float16, DType::bfloat16, DType::float32},
              "Element type")
      ->group(group);
  value_option(app, "--created", o.synth.created, "Creation date to record, as free text")
      ->group(group);
  group = "Planted structure (strengths: logits in nats, 0 disables)";
  each_plant(o.synth, add);
}

void run(CLI::App& sub, SynthCommand& o) {
  apply_config(sub, o.config);
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
  value_option(*sub, "--seed", o->synth.seed,
               "Random seed; equal options and seed give equal files");
  config_option(*sub, o->config);
  add_options(*sub, *o);
  sub->callback([o, sub] { run(*sub, *o); });
}

}  // namespace kvbench
